"""Evaluate policies on environments; honest statistics."""

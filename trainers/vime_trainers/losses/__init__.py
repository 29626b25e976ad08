"""Losses as small pure functions on per-token tensors."""

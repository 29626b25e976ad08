"""Trainers that are measured, each in a process of its own."""

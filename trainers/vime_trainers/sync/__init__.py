"""Weights from the trainer into running engines, proven by a probe."""

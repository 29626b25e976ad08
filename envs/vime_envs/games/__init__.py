"""Ready-made games."""

"""Ready-made tools."""

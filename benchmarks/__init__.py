"""Measurements, each a ratio against a named peer or limit, taken side by side in one run."""

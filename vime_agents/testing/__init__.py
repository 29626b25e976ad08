"""Conformance kits for plug-in authors, and fakes."""

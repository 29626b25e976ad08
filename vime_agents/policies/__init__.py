"""Talk to models."""

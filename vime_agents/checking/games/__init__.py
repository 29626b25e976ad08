"""`vime-agents check` for environments of several agents."""

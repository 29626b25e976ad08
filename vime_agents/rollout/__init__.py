"""Play episodes: the runner, limits, groups."""

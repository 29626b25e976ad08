"""From what happened to what is learned from. Pure functions, numpy only."""

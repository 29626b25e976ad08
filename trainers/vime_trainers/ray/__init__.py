"""Actors and loops that Ray places."""

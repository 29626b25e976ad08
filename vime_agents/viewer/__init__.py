"""Stored episodes for a person: at the terminal, and as a folder of HTML."""

"""Stored episodes -> files that other programs read: JSON Lines, Parquet, ATIF."""

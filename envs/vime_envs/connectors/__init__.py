"""Environments of other libraries as environments of ours, one file for each library."""

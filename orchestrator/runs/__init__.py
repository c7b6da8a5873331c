"""Runs: one experiment, from its start to its tables."""

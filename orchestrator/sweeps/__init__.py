"""Sweeps: many trials of one experiment, each a run of its own."""

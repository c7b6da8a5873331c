"""Sweeps: runs of one experiment with different values."""

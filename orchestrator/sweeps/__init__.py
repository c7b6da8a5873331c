"""Sweeps: many trials of one experiment, and the table that joins what each chose with what it cost."""

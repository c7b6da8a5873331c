"""Rows of each rank: their format, how they are written, read back and compacted."""

"""Checkpoints: the format, how they are written and verified, which are kept."""

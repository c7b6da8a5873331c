"""Saving and restoring a training: what its checkpoints hold, and how far it has come."""

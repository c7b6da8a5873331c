"""The state of a training: what checkpoints save and restore."""

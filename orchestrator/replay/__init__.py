"""Training again from a checkpoint: replay of an iteration, and whether a resume is exact."""

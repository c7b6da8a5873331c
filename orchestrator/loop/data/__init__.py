"""Data: the samples of each rank, their order, and the place in an epoch."""

"""The space of a sweep, its checks, and the trials that share one training."""

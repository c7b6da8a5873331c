"""The spans of an iteration: what they are, the clock that takes them, and their columns. Runs in workers."""

"""Results: what the trials of a sweep chose, reached and left behind."""

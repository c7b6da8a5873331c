"""Terminal: what is shown while a run or a sweep goes on, and what Ctrl-C means."""

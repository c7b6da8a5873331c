"""Terminal: the display of a run or sweep, and Ctrl-C."""

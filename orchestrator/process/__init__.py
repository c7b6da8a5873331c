"""This process: Ctrl-C, the signals of its children, and where it writes."""

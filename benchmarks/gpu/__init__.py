"""What the hooked loop costs on a GPU, and how fast it is there: one part for each claim, each a process of its own."""

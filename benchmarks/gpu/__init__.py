"""Cost and speed of the hooked loop on a GPU: one part for each claim, each a process of its
own."""

"""The layers, buffers and averages of a model, for hooks and for the loop."""

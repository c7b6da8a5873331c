"""Records: what a run and a sweep keep on disk beside their rows and checkpoints. Imports neither
ray nor torch."""

"""What lies outside of a library's public API, fenced: one module for each library, and nowhere else."""

"""Runs that share a training: what each has for itself, and how they take turns."""

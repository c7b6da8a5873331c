"""Runs that share a training: the state that each run owns, and their turns."""

"""Preflight checks of a cluster, and jobs that run on it."""

"""Searches and the race, which choose the next trial."""

"""Schedulers of trials: their keys and checks, and the rules of those that stop single trials."""

"""Schedulers of trials: their keys and checks, and the rules of the schedulers that stop single trials."""

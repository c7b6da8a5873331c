"""Names of optimizers. Needs no torch."""

OptimizerName = str | None
"""Name of one of several optimizers; None for the only optimizer of an experiment."""

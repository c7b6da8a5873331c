"""Optimizers, parameter groups and learning-rate schedules that an experiment names."""

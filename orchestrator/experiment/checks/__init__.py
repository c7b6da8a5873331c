"""Checks that no single section can make: names of classes, metrics, data, conflicts."""

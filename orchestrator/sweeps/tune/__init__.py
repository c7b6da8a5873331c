"""Trials under Ray Tune."""

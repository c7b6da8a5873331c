"""Tune: trials as Ray Tune runs them."""

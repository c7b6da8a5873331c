"""Benchmarks: one script per claim, with peers measured in the same run. Everything computes on one
thread, like a rank with one CPU."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

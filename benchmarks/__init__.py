"""One script per claim, peers beside it in the same run. Everything computes on one thread, as a rank with one CPU
does."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

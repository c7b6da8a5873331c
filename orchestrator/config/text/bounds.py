"""How large a config may be."""

from __future__ import annotations

LARGEST = 512 * 1024
"""Bytes of a file that people write. With its aliases (`*name`) written out a text may hold as many characters."""
DEEPEST = 64
"""Levels of mappings and lists in each other, and parts of a dotted path."""
WHOLE_NUMBERS = range(-(2**63), 2**64)
"""What 64 bits hold, signed or not."""
LARGEST_SEED = 2**32 - 1
"""What every generator takes: Python's, NumPy's and torch's, with the numbers of epochs and ranks beside it."""
MOST_SWEPT = 200
"""Paths of a sweep's space."""
MOST_LISTED = 1_000
"""Values of one list of a sweep's space, and points to try first."""
MOST_TRIED = 5_000
"""Values and combinations of them that are tried in the experiment before the first trial of a sweep."""
MOST_TRIALS = 100_000

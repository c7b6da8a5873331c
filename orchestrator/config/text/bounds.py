"""How large a config may be, so that any file or override is answered within seconds and a GiB, whoever wrote it."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """How much one text may hold, with its aliases (`*name`) written out."""

    characters: int
    values: int
    """Keys and values, counted together."""


WRITTEN = Bounds(characters=512 * 1024, values=20_000)
"""A file that people write, or an override."""
FILLED_IN = Bounds(characters=16 * WRITTEN.characters, values=5 * WRITTEN.values)
"""The experiment.yaml of a run: the same with every default filled in and indented."""
DEEPEST = 64
"""Levels of mappings and lists in each other, and parts of a dotted path."""
LONGEST_PATH = 1_000
"""Characters of a dotted path, and so of a key."""
WHOLE_NUMBERS = range(-(2**63), 2**64)
"""What 64 bits hold, signed or not."""
LARGEST_SEED = 2**32 - 1
"""What every generator takes: Python's, NumPy's and torch's, with the numbers of epochs and ranks beside it."""
MOST_FILES = 100
"""Bases of a file, and of its bases."""
MOST_OVERRIDES = 1_000
MOST_HOOKS = 100
MOST_SWEPT = 200
"""Paths of a sweep's space."""
MOST_LISTED = 1_000
"""Values of one list of a sweep's space, and points to try first."""
MOST_TRIED = 5_000
"""Values and combinations of them that are tried in the experiment before the first trial of a sweep."""
MOST_TRIALS = 100_000

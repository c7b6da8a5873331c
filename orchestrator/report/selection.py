"""Selection: what a page tells of one by one where there is too much for one page, and the words that say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

LONGEST = 200
"""Letters of a text in a cell; of an error twenty times as many."""

Entry = TypeVar("Entry")


def fitting(columns: int, most: int, cells: int) -> int:
    """How many rows of so many columns are told of: `most`, but no more `cells` than a page has room for."""
    return max(1, min(most, cells // max(columns, 1)))


def best_and_others(ordered: Sequence[Entry], most: int) -> list[Entry]:
    """At most so many, in their order, of which the best come first: these to a half, and the others evenly down to the
    last."""
    if len(ordered) <= most:
        return [*ordered]
    best = most // 2
    others = np.linspace(best, len(ordered) - 1, most - best).round().astype(int)
    return [*ordered[:best], *(ordered[place] for place in others)]


def told(shown: int, count: int) -> str:
    """Says how many of the trials `best_and_others` has taken; nothing where that is all."""
    if shown >= count:
        return ""
    return f"{shown:,} of {count:,} trials are drawn: the best {shown // 2:,}, and others evenly down to the worst."


def shortened(table: pd.DataFrame) -> pd.DataFrame:
    """The table with long texts cut."""
    texts = map(str, table.select_dtypes(exclude=np.number).columns)
    return table.assign(
        **{name: [_cut(value, 20 * LONGEST if name == "error" else LONGEST) for value in table[name]] for name in texts}
    )


def _cut(value: Any, most: int) -> Any:
    return f"{value[:most]}…" if isinstance(value, str) and len(value) > most else value

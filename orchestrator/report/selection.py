"""Selection of trials, where a page has no room for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

LONGEST = 200
"""Characters of a text in a cell; an error may have twenty times as many."""

Entry = TypeVar("Entry")


def fitting(columns: int, most: int, cells: int) -> int:
    """Return the number of rows with `columns` columns: `most`, but not more than `cells` allow."""
    return max(1, min(most, cells // max(columns, 1)))


def best_and_others(ordered: Sequence[Entry], most: int) -> list[Entry]:
    """Select at most `most` entries: half of them the best, the others evenly down to the last."""
    if len(ordered) <= most:
        return [*ordered]
    best = most // 2
    others = np.linspace(best, len(ordered) - 1, most - best).round().astype(int)
    return [*ordered[:best], *(ordered[place] for place in others)]


def describe_selection(shown: int, count: int) -> str:
    """Describe what `best_and_others` selected; empty if it took all."""
    if shown >= count:
        return ""
    return f"{shown:,} of {count:,} trials are drawn: the {shown // 2:,} best, and others evenly down to the worst."


def shortened(table: pd.DataFrame) -> pd.DataFrame:
    """Cut long texts."""
    texts = map(str, table.select_dtypes(exclude=np.number).columns)
    return table.assign(
        **{name: [_cut(value, 20 * LONGEST if name == "error" else LONGEST) for value in table[name]] for name in texts}
    )


def _cut(value: Any, most: int) -> Any:
    return f"{value[:most]}…" if isinstance(value, str) and len(value) > most else value

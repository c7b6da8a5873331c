"""Parameters, and parts of a model, by patterns of their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import translate
from typing import Literal

Match = Literal["glob", "regex"]


def compiled(pattern: str, match: Match = "glob") -> re.Pattern[str]:
    """What matches a whole name; raises ValueError where a pattern is no regular expression."""
    try:
        return re.compile(translate(pattern) if match == "glob" else pattern)
    except re.error as error:
        raise ValueError(
            f"pattern '{pattern}' is no regular expression: {error}; for * and ? write match: glob"
        ) from None


def matched(
    patterns: Iterable[str], names: Collection[str], match: Match = "glob", kind: str = "parameter"
) -> list[str]:
    """The names that any of the patterns matches, in their order; raises ValueError for a pattern that matches none."""
    found: set[str] = set()
    for pattern in patterns:
        these = set(filter(compiled(pattern, match).fullmatch, names))
        if not these:
            raise ValueError(f"pattern '{pattern}' matches no {kind}; {_nearest(pattern, list(names))}")
        found |= these
    return [name for name in names if name in found]


def listed(names: Sequence[str], most: int = 10) -> str:
    """Some names for people to read."""
    return f"{', '.join(names[:most])}{' ...' if len(names) > most else ''}"


def _nearest(pattern: str, names: Sequence[str]) -> str:
    near = get_close_matches(pattern, names, cutoff=0.4)
    return f"did you mean {', '.join(near)}?" if near else f"there are: {listed(names)}"

"""Names of parameters and modules by patterns."""

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import translate
from typing import Annotated, Literal

from annotated_types import MinLen

Match = Literal["glob", "regex"]
Patterns = str | Annotated[list[str], MinLen(1)]
"""A pattern of full names, or several."""


def compile_pattern(pattern: str, match: Match = "glob") -> re.Pattern[str]:
    """Compile a pattern for full names; raises ValueError for an invalid regular expression."""
    expression = translate(pattern) if match == "glob" else pattern
    try:
        return re.compile(expression)
    except re.error as error:
        raise ValueError(
            f"pattern '{pattern}' is not a regular expression: {error}; for * and ? write match: glob"
        ) from None


def list_patterns(patterns: str | Iterable[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def match_names(
    patterns: str | Iterable[str],
    names: Collection[str],
    match: Match = "glob",
    kind: str = "parameter",
) -> list[str]:
    """Return the names that any pattern matches, in their order; raises ValueError for a pattern
    without match."""
    selected: set[str] = set()
    for pattern in list_patterns(patterns):
        matches = set(filter(compile_pattern(pattern, match).fullmatch, names))
        if not matches:
            raise ValueError(
                f"pattern '{pattern}' matches no {kind}; {_suggest_nearest(pattern, list(names))}"
            )
        selected |= matches
    return [name for name in names if name in selected]


def join_names(names: Sequence[str], most: int = 10) -> str:
    """Return at most `most` names as text, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _suggest_nearest(pattern: str, names: Sequence[str]) -> str:
    near = get_close_matches(pattern, names, cutoff=0.4)
    return f"did you mean {', '.join(near)}?" if near else f"available: {join_names(names)}"

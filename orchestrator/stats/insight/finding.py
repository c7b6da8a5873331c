"""A finding on a run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

_RUN = re.compile(r"(hookyard \w+ )RUN\b")


@dataclass(frozen=True)
class Finding:
    """A finding: what it is, how large, how to see it, and what to try."""

    kind: str
    """failure, straggler, data, hook, checkpoint, memory, loss or spans."""
    sentence: str
    """One sentence with the important numbers."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Evidence as plain values; units are in the names."""
    query: str = ""
    """An expression on `stats` or `hook_costs`, or a `hookyard` command, that shows it."""
    advice: str = ""
    weight: float = 0.0
    """Order of importance; the share of the run's time (0 to 1) if it costs time."""

    def with_path(self, path: str) -> Self:
        """Put a run's path, quoted for a shell, in place of RUN in the commands."""
        query, advice = (
            _RUN.sub(lambda match: match[1] + shlex.quote(path), text) for text in (self.query, self.advice)
        )
        return replace(self, query=query, advice=advice)


def rank_names(ranks: list[int], of: int) -> str:
    """Describe some of `of` ranks: `rank 3 alone`, `ranks 0, 2 of 8`."""
    if len(ranks) == of:
        return "every rank"
    return f"rank {ranks[0]} alone" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} of {of}"

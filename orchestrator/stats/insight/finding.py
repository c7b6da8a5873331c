"""A finding: one thing that the tables say of a run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

_OF_A_RUN = re.compile(r"(hookyard \w+ )RUN\b")
"""A command as findings have it, which know no run's place."""


@dataclass(frozen=True)
class Finding:
    """One thing found: what it is, how large, how to see it oneself, and what to try."""

    kind: str
    """failure, straggler, data, hook, checkpoint, memory, regression, loss or spans."""
    sentence: str
    """What was found, in one sentence with the numbers that matter."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What the sentence rests on, as plain values; units are in the names."""
    query: str = ""
    """What shows it: an expression on `stats` or `hook_costs`, or a `hookyard` command."""
    advice: str = ""
    """What to try."""
    weight: float = 0.0
    """How much it matters, for sorting: for what costs time, its share of the run's time (0 to 1)."""

    def of_run(self, path: str) -> Self:
        """The same with the run's path in place of RUN in the commands, as a shell takes it."""
        query, advice = (
            _OF_A_RUN.sub(lambda found: found[1] + shlex.quote(path), text) for text in (self.query, self.advice)
        )
        return replace(self, query=query, advice=advice)


def rank_names(ranks: list[int], of: int) -> str:
    """Some ranks in words, of so many that there are."""
    if len(ranks) == of:
        return "every rank"
    return f"rank {ranks[0]} alone" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} of {of}"

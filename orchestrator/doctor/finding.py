"""A finding on a run."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd

_RUN = re.compile(r"(hookyard \w+ )RUN\b")


@dataclass(frozen=True)
class Finding:
    """A finding: a description with numbers, a query that shows it, and advice."""

    kind: str
    """One of failure, straggler, data, hook, checkpoint, memory, loss and spans."""
    sentence: str
    """A sentence with the important numbers."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Evidence as plain values; units are in the names."""
    query: str = ""
    """Expression on `run`, which `open_run` returns, or `hookyard` command, that shows it."""
    advice: str = ""
    weight: float = 0.0
    """Importance: the share of the run's time that a finding costs (0 to 1), or more if the run is
    useless."""

    def with_path(self, path: str) -> Self:
        """Return a copy with a run's path, quoted for a shell, instead of RUN in the commands."""

        def insert(text: str) -> str:
            return _RUN.sub(lambda match: match[1] + shlex.quote(path), text)

        return replace(self, query=insert(self.query), advice=insert(self.advice))


def format_rank(rank: int, world_size: int) -> str:
    """Say where something happened: ` on rank 3`; nothing for a run of one rank."""
    return f" on rank {rank}" if world_size > 1 else ""


def format_ranks(ranks: list[int], world_size: int) -> str:
    """Say where something happened: ` on rank 3 alone`, ` on ranks 0, 2 of 8`, ` on every rank`;
    nothing for a run of one rank."""
    if world_size == 1:
        return ""
    if len(ranks) == world_size:
        return " on every rank"
    if len(ranks) == 1:
        return f" on rank {ranks[0]} alone"
    return f" on ranks {', '.join(map(str, ranks))} of {world_size}"


def find_rank_with_max(values: "pd.Series[Any]") -> int:
    return int(values.index[int(np.nanargmax(values.to_numpy(dtype=float)))])

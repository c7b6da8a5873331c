"""The training iterations in which ranks are compared: all of them, or a sample of a long run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate.spans import SPANS
from orchestrator.stats.read.query import TRAINING, Rows

MOST_ROWS, MOST_ITERATIONS = 2**20, 20_000
"""A run with at most these is taken whole."""
STRETCHES = 20
"""Number of stretches of a longer run, evenly over it."""


@dataclass(frozen=True)
class IterationSample:
    """Training rows of every rank."""

    rows: pd.DataFrame
    """Sorted by iteration, with the columns for comparing ranks."""
    iterations: int
    """Number of iterations of the run."""
    ranks: int

    @cached_property
    def share(self) -> float:
        """Share of the run's iterations."""
        return int(self.rows["iteration"].nunique()) / max(1, self.iterations)

    @cached_property
    def step_s(self) -> float | None:
        """Median time of an iteration; None if nothing was timed."""
        return float(self.rows["step_s"].median()) if "step_s" in self.rows else None


def sample_iterations(rows: Rows) -> IterationSample:
    """Select the training iterations of a run in which to compare its ranks."""
    columns = [
        name
        for name in ("rank", "node", "phase", "iteration", "step", "batch_size", "rss_bytes", "step_s", *SPANS)
        if name in rows.columns
    ]
    columns_by_rank = {"rows": "sum(rows)::bigint", "first": "min(first)", "last": "max(iteration)"}
    ranks = rows.aggregate(columns_by_rank, ["rank"], TRAINING, rows.blocks)
    if not len(ranks):
        return IterationSample(pd.DataFrame(columns=columns), 0, 0)
    first, last = int(ranks["first"].min()), int(ranks["last"].max())
    iterations = last - first + 1
    if ranks["rows"].max() < iterations:
        # No rank has them all, so that they are counted one by one.
        iterations = int(rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)["all"].iloc[0])
    wanted = min(MOST_ITERATIONS, max(STRETCHES, MOST_ROWS // len(ranks)))
    where = TRAINING
    if iterations > wanted:
        length = wanted // STRETCHES
        begins = np.linspace(first, last + 1 - length, STRETCHES).astype(int)
        stretches = [f"iteration between {begin} and {begin + length - 1}" for begin in begins]
        where = f"{TRAINING} and ({' or '.join(stretches)})"
    sample = rows.ask(f"select {', '.join(columns)} from rows where {where} order by iteration, rank")
    return IterationSample(sample, iterations, len(ranks))

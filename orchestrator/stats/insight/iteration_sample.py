"""The training iterations in which ranks are compared: all of them, or in a long run a sample."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate.spans import SPANS
from orchestrator.stats.read.query import TRAINING, Rows

MAX_ROWS, MAX_ITERATIONS = 2**20, 20_000
"""A run with more rows or iterations is sampled."""
N_STRETCHES = 20
"""Number of evenly spaced stretches that a sample consists of."""


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
        """Share of the run's iterations that the sample has."""
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
        # No rank has all of them, so they must be counted.
        iterations = int(rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)["all"].iloc[0])
    max_iterations = min(MAX_ITERATIONS, max(N_STRETCHES, MAX_ROWS // len(ranks)))
    where = TRAINING
    if iterations > max_iterations:
        length = max_iterations // N_STRETCHES
        starts = np.linspace(first, last + 1 - length, N_STRETCHES).astype(int)
        stretches = [f"iteration between {start} and {start + length - 1}" for start in starts]
        where = f"{TRAINING} and ({' or '.join(stretches)})"
    sample = rows.query(f"select {', '.join(columns)} from rows where {where} order by iteration, rank")
    return IterationSample(sample, iterations, len(ranks))

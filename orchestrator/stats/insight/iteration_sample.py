"""The training iterations in which ranks are compared: all of them, or a sample of a long run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate.blocks import STALL
from orchestrator.stats.aggregate.spans import SPANS
from orchestrator.stats.read.query import TRAINING, Rows

MOST_ROWS, MOST_ITERATIONS = 2**20, 20_000
"""A run with at most these is taken whole."""
STRETCHES = 20
"""Of a longer run: this many stretches, evenly over it, and the iterations of its longest stalls."""
STALLS, LEAST_STALL = 500, 3.0
"""Number of stalls, in which a span takes at least this many times a usual iteration."""


@dataclass(frozen=True)
class IterationSample:
    """Training rows of every rank."""

    rows: pd.DataFrame
    """Sorted by iteration, with the columns for comparing ranks."""
    iterations: int
    """Number of iterations of the run."""
    ranks: int
    stretches: Sequence[tuple[int, int]] = ()
    """First and last iteration of each stretch; empty for a whole run."""

    @cached_property
    def share(self) -> float:
        """Share of the run's iterations."""
        return int(self.rows["iteration"].nunique()) / max(1, self.iterations)

    @property
    def typical(self) -> pd.DataFrame:
        """Rows of the stretches alone, which are representative of the run."""
        if not self.stretches:
            return self.rows
        firsts, lasts = np.array(self.stretches).T
        iteration = self.rows["iteration"].to_numpy()
        within: pd.DataFrame = self.rows[iteration <= lasts[np.searchsorted(firsts, iteration, side="right") - 1]]
        return within

    @cached_property
    def step_s(self) -> float | None:
        """Median time of an iteration; None if nothing was timed."""
        return float(self.typical["step_s"].median()) if "step_s" in self.rows else None


def sample_iterations(rows: Rows) -> IterationSample:
    """Select the training iterations of a run in which to compare its ranks."""
    columns = [
        name
        for name in ("rank", "node", "phase", "iteration", "step", "batch_size", "rss_bytes", "step_s", *SPANS)
        if name in rows.columns
    ]
    columns_by_rank = {
        "rows": "sum(rows)::bigint",
        "first": "min(first)",
        "last": "max(iteration)",
        "steps": "max(step) - min(step)",
    }
    ranks = rows.aggregate(columns_by_rank, ["rank"], TRAINING, rows.blocks)
    if not len(ranks):
        return IterationSample(pd.DataFrame(columns=columns), 0, 0)
    first, last = int(ranks["first"].min()), int(ranks["last"].max())
    iterations = last - first + 1
    if ranks["rows"].max() < iterations:
        # No rank has them all, so that they are counted one by one.
        iterations = int(rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)["all"].iloc[0])
    wanted = min(MOST_ITERATIONS, max(STRETCHES, MOST_ROWS // len(ranks)))
    chosen, stretches = TRAINING, []
    if iterations > wanted:
        length = wanted // STRETCHES
        stretches = [
            (begin, begin + length - 1)
            for begin in np.linspace(first, last + 1 - length, STRETCHES).astype(int).tolist()
        ]
        # In the middle of accumulated steps, a whole step is what ranks are compared by.
        around = -(-(last - first + 1) // max(1, int(ranks["steps"].max()))) - 1 if "step" in rows.columns else 0
        wide = [*stretches, *((at - around, at + around) for at in _stalled(rows))]
        chosen = (
            f"{TRAINING} and iteration in"
            f" ({', '.join(map(str, sorted({at for begin, end in wide for at in range(begin, end + 1)})))})"
        )
    return IterationSample(
        rows.ask(f"select {', '.join(columns)} from rows where {chosen} order by iteration, rank"),
        iterations,
        len(ranks),
        stretches,
    )


def _stalled(rows: Rows) -> list[int]:
    """Return the iterations of the longest stalls of a rank's own work, at most one of each block."""
    if "step_s" not in rows.numbers:
        return []
    usual = rows.ask(
        f'select "step_s total" / "step_s known" as step_s from {rows.blocks} where {TRAINING} and "step_s known" > 0'
    )["step_s"].median()
    where = f"{TRAINING} and {STALL} > {LEAST_STALL * usual}"
    return [
        int(at)
        for at in (
            rows.aggregate({"longest": f"max({STALL})"}, ["stalled"], where, rows.blocks)["longest"]
            .nlargest(STALLS)
            .index
        )
    ]

"""The training iterations in which ranks are compared: all of them, or a sample of a long run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate.blocks import STALL
from orchestrator.stats.aggregate.spans import SPANS
from orchestrator.stats.read.query import Rows

TRAINING = "phase = 'train'"
MOST_ROWS, MOST_ITERATIONS = 2**20, 20_000
"""Of a run that has no more than these, all iterations are looked at."""
STRETCHES = 20
"""Of a longer one so many stretches, evenly over the run, and the iterations that hold the longest stalls."""
STALLS, LEAST_STALL = 500, 3.0
"""At most so many, in which a span took so many times as long as an iteration does."""


@dataclass(frozen=True)
class IterationSample:
    """Training rows of every rank."""

    rows: pd.DataFrame
    """In order of iterations, with the columns that comparing ranks takes."""
    iterations: int
    """How many the run has."""
    ranks: int
    stretches: Sequence[tuple[int, int]] = ()
    """The first and last iteration of each that was chosen without regard to stalls; none where all are looked at."""

    @cached_property
    def share(self) -> float:
        """The part of the run's iterations that is looked at."""
        return int(self.rows["iteration"].nunique()) / max(1, self.iterations)

    @property
    def typical(self) -> pd.DataFrame:
        """Those rows whose medians and quantiles stand for the run's."""
        if not self.stretches:
            return self.rows
        firsts, lasts = np.array(self.stretches).T
        iteration = self.rows["iteration"].to_numpy()
        within: pd.DataFrame = self.rows[iteration <= lasts[np.searchsorted(firsts, iteration, side="right") - 1]]
        return within

    @cached_property
    def step_s(self) -> float | None:
        """The median time of an iteration; None where nothing was timed."""
        return float(self.typical["step_s"].median()) if "step_s" in self.rows else None


def sample_iterations(rows: Rows) -> IterationSample:
    """Select the training iterations of a run in which to compare its ranks."""
    columns = [
        name
        for name in ("rank", "node", "phase", "iteration", "step", "batch_size", "rss_bytes", "step_s", *SPANS)
        if name in rows.columns
    ]
    asked = {
        "rows": "sum(rows)::bigint",
        "first": "min(first)",
        "last": "max(iteration)",
        "steps": "max(step) - min(step)",
    }
    found = rows.aggregate(asked, ["rank"], TRAINING, rows.blocks)
    if not len(found):
        return IterationSample(pd.DataFrame(columns=columns), 0, 0)
    first, last = int(found["first"].min()), int(found["last"].max())
    iterations = last - first + 1
    if found["rows"].max() < iterations:
        # No rank has them all, so that they are counted one by one.
        iterations = int(rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)["all"].iloc[0])
    wanted = min(MOST_ITERATIONS, max(STRETCHES, MOST_ROWS // len(found)))
    chosen, stretches = TRAINING, []
    if iterations > wanted:
        length = wanted // STRETCHES
        stretches = [
            (begin, begin + length - 1)
            for begin in np.linspace(first, last + 1 - length, STRETCHES).astype(int).tolist()
        ]
        # In the middle of accumulated steps, a whole step is what ranks are compared by.
        around = -(-(last - first + 1) // max(1, int(found["steps"].max()))) - 1 if "step" in rows.columns else 0
        wide = [*stretches, *((at - around, at + around) for at in _stalled(rows))]
        chosen = (
            f"{TRAINING} and iteration in"
            f" ({', '.join(map(str, sorted({at for begin, end in wide for at in range(begin, end + 1)})))})"
        )
    return IterationSample(
        rows.ask(f"select {', '.join(columns)} from rows where {chosen} order by iteration, rank"),
        iterations,
        len(found),
        stretches,
    )


def _stalled(rows: Rows) -> list[int]:
    """The iterations in which some rank's own work took much longer than an iteration does, the longest of them; of
    each block one."""
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

"""A look: the training iterations in which ranks are compared. All of them; of a long run, some that stand for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orchestrator.stats.query import Rows
from orchestrator.stats.spans import SPANS

TRAINING = "phase = 'train'"
MOST_ROWS, MOST_ITERATIONS = 2**20, 20_000
"""Of a run that has no more than these, all iterations are looked at."""
STRETCHES = 20
"""Of a longer one so many stretches, evenly over the run, and the iterations that hold the longest stalls."""
STALLS, LEAST_STALL = 500, 3.0
"""At most so many, in which a span took so many times as long as an iteration does."""
_WAITS = ("backward_s", "all_reduce_wait_s")
"""Spans in which ranks wait for one that stalls."""


@dataclass(frozen=True)
class Look:
    """Training rows of every rank."""

    rows: pd.DataFrame
    """In order of iterations, with the columns that comparing ranks takes."""
    iterations: int
    """How many the run has."""
    ranks: int
    step_s: float | None
    """The median of all iterations; None where nothing was timed."""

    @property
    def share(self) -> float:
        """The part of the run's iterations that is looked at."""
        return int(self.rows["iteration"].nunique()) / max(1, self.iterations)


def look(rows: Rows) -> Look:
    """The iterations of a run as its ranks lived them together."""
    columns = [name for name in ("rank", "node", "phase", "iteration", "step", "batch_size", "step_s", *SPANS) if name in rows.columns]
    found = rows.aggregate({"rows": "count(*)", "first": "min(iteration)", "last": "max(iteration)"}, ["rank"], TRAINING)
    if not len(found):
        return Look(pd.DataFrame(columns=columns), 0, 0, None)
    step_s = float(rows.quantiles({"step_s": "step_s"}, [0.5], TRAINING)["step_s"].iloc[0]) if "step_s" in columns else None
    first, last = int(found["first"].min()), int(found["last"].max())
    iterations = last - first + 1
    if found["rows"].max() < iterations:
        # No rank has them all, so that they are counted one by one.
        iterations = int(rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)["all"].iloc[0])
    wanted = min(MOST_ITERATIONS, max(STRETCHES, MOST_ROWS // len(found)))
    chosen = TRAINING if iterations <= wanted else f"{TRAINING} and ({_stretches(rows, first, last, wanted, step_s)})"
    return Look(rows.ask(f"select {', '.join(columns)} from rows where {chosen} order by iteration, rank"), iterations, len(found), step_s)


def _stretches(rows: Rows, first: int, last: int, wanted: int, step_s: float | None) -> str:
    """The condition for `wanted` iterations in stretches between two, and those around the longest stalls."""
    length = wanted // STRETCHES
    begins = np.linspace(first, last + 1 - length, STRETCHES).astype(int).tolist()
    # In the middle of accumulated steps, a whole step is what ranks are compared by.
    around = 0 if "step" not in rows.columns else int(rows.aggregate({"each": f"ceil({last - first + 1} / greatest(1, max(step) - min(step)))"}, where=TRAINING)["each"].iloc[0]) - 1
    stretches = [(begin, begin + length - 1) for begin in begins] + [(at - around, at + around) for at in _stalled(rows, step_s)]
    return " or ".join(f"iteration between {begin} and {end}" for begin, end in stretches)


def _stalled(rows: Rows, step_s: float | None) -> list[int]:
    """The iterations in which some rank's own work took much longer than an iteration does, the longest of them."""
    own = [name for name in SPANS if name in rows.columns and name not in _WAITS]
    if step_s is None or not own:
        return []
    longest = f"greatest({', '.join(own)})"
    found = rows.aggregate({"longest": f"max({longest})"}, ["iteration"], f"{TRAINING} and {longest} > {LEAST_STALL * step_s}")
    return [int(at) for at in found["longest"].nlargest(STALLS).index]

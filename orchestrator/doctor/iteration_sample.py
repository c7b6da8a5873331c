"""A sample of a run's iterations, in which its ranks are compared."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from orchestrator.column_names import SPANS
from orchestrator.tables.query import TRAINING, Rows

MAX_ROWS = 2**20
"""A run with more rows is sampled."""
MAX_ITERATIONS = 20_000
"""A run with more iterations is sampled."""
N_STRETCHES = 20
"""Number of evenly spaced stretches that a sample consists of."""
_SAMPLED_COLUMNS = ("rank", "node", "iteration", "step", "step_s", *SPANS)


class IterationSample(NamedTuple):
    """Training rows of every rank."""

    rows: pd.DataFrame
    """Sorted by iteration, with the columns for comparing ranks."""
    iterations: int
    """Number of iterations of the run."""
    ranks: int


def sample_iterations(rows: Rows) -> IterationSample:
    """Select the training iterations of a run in which to compare its ranks."""
    columns = [name for name in _SAMPLED_COLUMNS if name in rows.columns]
    ranks = rows.aggregate(
        {"rows": "sum(rows)::bigint", "first": "min(first)", "last": "max(iteration)"},
        ["rank"],
        TRAINING,
        "blocks",
    )
    if not len(ranks):
        return IterationSample(pd.DataFrame(columns=columns), 0, 0)

    first = int(ranks["first"].min())
    last = int(ranks["last"].max())
    iterations = last - first + 1
    if ranks["rows"].max() < iterations:
        # No rank has all of them, so they must be counted.
        counted = rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)
        iterations = int(counted["all"].iloc[0])

    where = TRAINING
    max_iterations = min(MAX_ITERATIONS, max(N_STRETCHES, MAX_ROWS // len(ranks)))
    if iterations > max_iterations:
        where = f"{TRAINING} and {_select_stretches(first, last, max_iterations // N_STRETCHES)}"
    sample = rows.query(
        f"select {', '.join(columns)} from rows where {where} order by iteration, rank"
    )
    return IterationSample(sample, iterations, len(ranks))


def _select_stretches(first: int, last: int, length: int) -> str:
    """Return the SQL condition of evenly spaced stretches of iterations."""
    starts = np.linspace(first, last + 1 - length, N_STRETCHES).astype(int)
    stretches = [f"iteration between {start} and {start + length - 1}" for start in starts]
    return f"({' or '.join(stretches)})"

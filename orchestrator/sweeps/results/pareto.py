"""The Pareto front of a sweep's trials."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from orchestrator.sweeps.results.ranking import select_candidates


def find_pareto_front(trials: pd.DataFrame, modes: Mapping[str, str]) -> pd.DataFrame:
    """Return the Pareto front, sorted by its first column, best first. `modes` maps columns to
    `max` or `min`.

    Equal trials are all kept. Trials that failed, or lack a number in one of the columns, are
    dropped.
    """
    rated = select_candidates(trials, *modes)
    signs = [1 if mode == "min" else -1 for mode in modes.values()]
    # Adding zero turns -0.0 into 0.0.
    values = rated[list(modes)].to_numpy(dtype=float) * signs + 0.0
    costs, rows = np.unique(values, axis=0, return_inverse=True)

    # The costs are sorted, so no later row can beat an earlier one.
    is_on_front = np.zeros(len(costs), dtype=bool)
    candidates = np.arange(len(costs))
    while len(candidates):
        is_on_front[candidates[0]] = True
        beats_somewhere = (costs[candidates] < costs[candidates[0]]).any(axis=1)
        candidates = candidates[beats_somewhere]
    first, mode = next(iter(modes.items()))
    return rated[is_on_front[rows.ravel()]].sort_values(
        first, ascending=mode == "min", kind="stable"
    )

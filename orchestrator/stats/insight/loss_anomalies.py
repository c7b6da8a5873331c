"""Loss anomalies: NaN, divergence, and losses that never changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from orchestrator.stats.aggregate.row_blocks import known
from orchestrator.stats.insight.finding import Finding, rank_names
from orchestrator.stats.insight.robust_statistics import Floats
from orchestrator.stats.read.query import TRAINING, Rows

WINDOW = 51
"""Most iterations at each end whose medians are compared."""
LEAST_MOVED = 20
"""Fewest iterations in which an unchanged loss is a finding."""
STILL = 1e-6
"""Largest range of an unchanged loss, as a share of it."""
MOST_ITERATIONS = 2**21
"""Neighbours are averaged if there are more."""
NOT_FINITE = "loss is null or isinf(loss)"
DIVERGED = 2.0
"""Ratio of the last loss to the first, from which training counts as diverged."""


def losses(rows: Rows) -> Iterator[Finding]:
    """Yield findings on the training loss, with the ranks that caused them."""
    if "loss" not in rows.columns:
        return
    seen = rows.aggregate(
        {"last": "max(iteration)", "bad": f"sum(rows) - {known('loss')}"}, ["rank"], TRAINING, rows.blocks
    )
    if not len(seen):
        return
    if seen["bad"].any():
        yield from _not_finite(rows, len(seen))
    together = -(-int(seen["last"].max()) // MOST_ITERATIONS)
    means = rows.ask(
        f"select iteration // {together} * {together} as first, avg(loss) as loss, count(*) as rows, count(*) filter"
        f" ({NOT_FINITE}) as bad from rows where {TRAINING} group by first order by first"
    ).set_index("first")
    finite = means["loss"][(means["rows"] >= len(seen)) & (means["bad"] == 0)]
    if len(finite) >= LEAST_MOVED:
        yield from _trend(finite.to_numpy(dtype=float))


def _not_finite(rows: Rows, ranks: int) -> Iterator[Finding]:
    bad_rows = rows.aggregate({"ranks": "list(rank order by rank)"}, ["iteration"], f"{TRAINING} and {NOT_FINITE}")[
        "ranks"
    ]
    iterations = int(rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)["all"].iloc[0])
    first, count, bad = int(bad_rows.index[0]), len(bad_rows), [int(rank) for rank in bad_rows.iloc[0]]
    yield Finding(
        "loss",
        f"the loss was not finite in {count} of {iterations} iterations, first at iteration {first} on"
        f" {rank_names(bad, ranks)}",
        {"problem": "not finite", "iteration": first, "ranks": bad, "iterations": count},
        "stats[~numpy.isfinite(stats['loss'])][['rank', 'iteration', 'loss']]",
        f"{_samples(first, bad, ranks)}; nan_guard skips such steps; anomaly_detection finds the operation; a"
        " lower learning rate or bf16 may avoid it",
        1.0,
    )


def _trend(means: Floats) -> Iterator[Finding]:
    part = min(WINDOW, len(means) // 4)
    began, ended = float(np.median(means[:part])), float(np.median(means[-part:]))
    numbers = {"began": began, "ended": ended, "iterations": len(means)}
    query = "stats.query(\"phase == 'train'\").groupby('iteration')['loss'].mean()"
    if means.max() - means.min() <= STILL * max(abs(began), STILL):
        yield Finding(
            "loss",
            f"the loss never changed: it was {began:.4g} in all {len(means)} iterations",
            {"problem": "unchanged", **numbers},
            query,
            "look for a learning rate of 0, frozen parameters, and an output or a loss that does not depend on them",
            1.0,
        )
    elif ended - began > (DIVERGED - 1) * abs(began) and ended >= np.quantile(means, 0.75):
        yield Finding(
            "loss",
            f"the loss diverged: from {began:.4g} in the first {part} iterations to {ended:.4g} in the last",
            {"problem": "diverged", **numbers},
            query,
            "a lower learning rate, a longer warm-up or gradient_clip; checkpoint's best is from before",
            1.0,
        )


def _samples(iteration: int, ranks: list[int], of: int) -> str:
    """Return the commands that list the samples of an iteration and replay it."""
    alone = f" --rank {ranks[0]}" if len(ranks) == 1 < of else ""
    return (
        f"hookyard samples RUN --where 'iteration = {iteration}'{alone} lists the samples, hookyard replay RUN"
        f" --iteration {iteration} --rank {ranks[0]} repeats it"
    )

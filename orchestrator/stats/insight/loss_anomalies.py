"""Loss anomalies: NaN, spikes, divergence, and losses that never changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate.blocks import known
from orchestrator.stats.insight.finding import Finding, rank_names
from orchestrator.stats.insight.robust_statistics import Floats
from orchestrator.stats.read.query import TRAINING, Rows

WINDOW = 51
"""Iterations that tell the usual loss around one."""
LEAST_DEVIATIONS = 10.0
LEAST_RISE = 0.2
"""Smallest spike, as a share of the usual loss."""
LEAST_OF_USUAL_RISES = 4.0
"""Smallest spike, as a multiple of the rise that one iteration in fifty exceeds: a noisy loss has none."""
LEAST_MOVED = 20
"""Fewest iterations in which an unchanged loss is a finding."""
STILL = 1e-6
"""Largest range of an unchanged loss, as a share of it."""
MOST_ITERATIONS = 2**21
"""Neighbours are averaged if there are more."""
NOT_FINITE = "loss is null or isinf(loss)"
DIVERGED = 2.0
"""Last loss over the first from which on training diverged."""


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
    if len(finite) >= WINDOW:
        yield from _spikes(rows, finite, together)
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


def _spikes(rows: Rows, means: pd.Series, together: int) -> Iterator[Finding]:
    usual = means.rolling(WINDOW, center=True, min_periods=WINDOW // 2).median()
    usual_mean, mean_over = usual.to_numpy(dtype=float), (means - usual).to_numpy(dtype=float)
    spread = 1.48 * pd.Series(np.abs(mean_over)).rolling(
        WINDOW, center=True, min_periods=WINDOW // 2
    ).median().to_numpy(dtype=float)
    high = mean_over > np.maximum(LEAST_DEVIATIONS * spread, LEAST_RISE * np.abs(usual_mean))
    # In units of what is usual at that point of the run, so that the noise of its beginning does not hide its end.
    relative = np.divide(mean_over, spread, out=np.zeros_like(mean_over), where=spread > 0)
    high &= (relative > LEAST_OF_USUAL_RISES * np.quantile(relative, 0.98)) | (spread == 0)
    places = np.flatnonzero(high)
    if not len(places):
        return
    episodes = 1 + int((np.diff(places) > WINDOW // 2).sum())
    worst = int(places[mean_over[places].argmax()])
    ranks, of = _ranks_above(rows, means, worst, together)
    iterations = [int(means.index[place]) for place in places.tolist()]
    height = float(mean_over[worst] + usual_mean[worst])
    yield Finding(
        "loss",
        f"the loss spiked {'once' if episodes == 1 else f'{episodes} times'}: to {height:.4g} at iteration"
        f" {means.index[worst]}, where {usual_mean[worst]:.4g} was usual; it came from {rank_names(ranks, of)}",
        {
            "problem": "spike",
            "iteration": int(means.index[worst]),
            "loss": height,
            "usual": float(usual_mean[worst]),
            "ranks": ranks,
            "episodes": episodes,
            "iterations": iterations,
        },
        f"stats.query('iteration == {means.index[worst]}')[['rank', 'loss']]",
        f"{_samples(iterations[places.tolist().index(worst)], ranks, of)}; "
        + (
            "loss_spike skips such steps, gradient_clip bounds their effect"
            if len(ranks) < of
            else "a lower learning rate, a longer warm-up or gradient_clip"
        ),
        min(0.5, 0.05 * episodes),
    )


def _samples(iteration: int, ranks: list[int], of: int) -> str:
    """Return the commands that list the samples of an iteration and replay it."""
    alone = f" --rank {ranks[0]}" if len(ranks) == 1 < of else ""
    return (
        f"hookyard samples RUN --where 'iteration = {iteration}'{alone} lists the samples, hookyard replay RUN"
        f" --iteration {iteration} --rank {ranks[0]} repeats it"
    )


def _ranks_above(rows: Rows, means: pd.Series, worst: int, together: int) -> tuple[list[int], int]:
    """Return the ranks whose loss rose at least half as much as the highest, and the number of ranks."""
    around = means.index[[max(0, worst - WINDOW // 2), min(len(means) - 1, worst + WINDOW // 2)]]
    where = f"{TRAINING} and iteration between {around[0]} and {around[1] + together - 1}"
    at = f"iteration // {together} * {together} = {means.index[worst]}"
    highest = rows.aggregate({"loss": f"max(loss) filter ({at})"}, ["rank"], where)["loss"]
    over = highest - rows.medians({"loss": "loss"}, "rank", where)["loss"]
    return [int(rank) for rank in over.index[over >= over.max() / 2]], len(over)

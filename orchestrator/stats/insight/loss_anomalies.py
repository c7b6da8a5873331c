"""Loss anomalies: values out of line and the ranks they came from, and losses that rose or never moved."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate.blocks import known
from orchestrator.stats.insight.finding import Finding, rank_names
from orchestrator.stats.insight.iteration_sample import TRAINING
from orchestrator.stats.insight.robust_statistics import Floats
from orchestrator.stats.read.query import Rows

WINDOW = 51
"""Iterations around one that say what is usual there."""
LEAST_DEVIATIONS = 10.0
LEAST_RISE = 0.2
"""Of the usual loss; less is no spike."""
LEAST_OF_USUAL_RISES = 4.0
"""A spike is so many times as high as the rises that one iteration in fifty has, so that a noisy loss has none."""
LEAST_MOVED = 20
"""So many iterations without any change of the loss are no training."""
STILL = 1e-6
"""Of the loss: a smaller range is none."""
MOST_ITERATIONS = 2**21
"""Of more, neighbours are taken together."""
NOT_FINITE = "loss is null or isinf(loss)"
DIVERGED = 2.0
"""So many times what it began with, over the last iterations: a loss that should fall."""


def losses(rows: Rows) -> Iterator[Finding]:
    """Losses that are not finite, spikes of the loss over all ranks, each with the ranks that had them, and a loss that
    diverged or stood still."""
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
        yield from _course(finite.to_numpy(dtype=float))


def _not_finite(rows: Rows, ranks: int) -> Iterator[Finding]:
    found = rows.aggregate({"ranks": "list(rank order by rank)"}, ["iteration"], f"{TRAINING} and {NOT_FINITE}")[
        "ranks"
    ]
    iterations = int(rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)["all"].iloc[0])
    first, count, bad = int(found.index[0]), len(found), [int(rank) for rank in found.iloc[0]]
    yield Finding(
        "loss",
        f"the loss was not finite in {count} of {iterations} iterations, first at iteration {first} on"
        f" {rank_names(bad, ranks)}",
        {"problem": "not finite", "iteration": first, "ranks": bad, "iterations": count},
        "stats[~numpy.isfinite(stats['loss'])][['rank', 'iteration', 'loss']]",
        f"{_samples(first, bad, ranks)}; nan_guard leaves such steps out; anomaly_detection finds the operation; a"
        " lower learning rate or bf16 may avoid it",
        1.0,
    )


def _course(means: Floats) -> Iterator[Finding]:
    """Whether the loss over all ranks never moved, or ended far above where it began."""
    part = min(WINDOW, len(means) // 4)
    began, ended = float(np.median(means[:part])), float(np.median(means[-part:]))
    numbers = {"began": began, "ended": ended, "iterations": len(means)}
    query = "stats.query(\"phase == 'train'\").groupby('iteration')['loss'].mean()"
    if means.max() - means.min() <= STILL * max(abs(began), STILL):
        yield Finding(
            "loss",
            f"the loss never moved: it was {began:.4g} in all of {len(means)} iterations",
            {"problem": "stood still", **numbers},
            query,
            "nothing is learned: a learning rate of 0, frozen parameters, an output or a loss that does not depend on"
            " them",
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
            "loss_spike leaves such steps out, gradient_clip bounds their effect"
            if len(ranks) < of
            else "a lower learning rate, a longer warm-up or gradient_clip"
        ),
        min(0.5, 0.05 * episodes),
    )


def _samples(iteration: int, ranks: list[int], of: int) -> str:
    """The commands that name the samples of some ranks in an iteration, and come to it again."""
    alone = f" --rank {ranks[0]}" if len(ranks) == 1 < of else ""
    return (
        f"hookyard samples RUN --where 'iteration == {iteration}'{alone} names the samples, hookyard replay RUN"
        f" --iteration {iteration} --rank {ranks[0]} comes to it again"
    )


def _ranks_above(rows: Rows, means: pd.Series, worst: int, together: int) -> tuple[list[int], int]:
    """The ranks whose own loss rose at least half as much as the highest, over what was usual for them around, of how
    many."""
    around = means.index[[max(0, worst - WINDOW // 2), min(len(means) - 1, worst + WINDOW // 2)]]
    where = f"{TRAINING} and iteration between {around[0]} and {around[1] + together - 1}"
    at = f"iteration // {together} * {together} = {means.index[worst]}"
    highest = rows.aggregate({"loss": f"max(loss) filter ({at})"}, ["rank"], where)["loss"]
    over = highest - rows.medians({"loss": "loss"}, "rank", where)["loss"]
    return [int(rank) for rank in over.index[over >= over.max() / 2]], len(over)

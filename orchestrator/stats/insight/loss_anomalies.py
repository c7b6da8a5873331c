"""Loss anomalies: values out of line and the ranks they came from, and losses that rose or never moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.stats.insight.robust_statistics import Floats
from orchestrator.stats.insight.verdict import Verdict, rank_names

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
DIVERGED = 2.0
"""So many times what it began with, over the last iterations: a loss that should fall."""


def losses(stats: pd.DataFrame) -> Iterator[Verdict]:
    """Losses that are not finite, spikes of the loss over all ranks, each with the ranks that had them, and a loss that
    diverged or stood still."""
    rows = stats[stats["phase"] == "train"]
    if "loss" not in rows or not len(rows):
        return
    table = rows.pivot_table(index="iteration", columns="rank", values="loss", aggfunc="last", dropna=False).sort_index()
    yield from _not_finite(rows)
    finite: Any = table[np.isfinite(table).all(axis=1)]
    if len(finite) >= WINDOW:
        yield from _spikes(finite)
    if len(finite) >= LEAST_MOVED:
        yield from _course(finite.mean(axis=1).to_numpy(dtype=float))


def _not_finite(rows: pd.DataFrame) -> Iterator[Verdict]:
    bad = rows[~np.isfinite(rows["loss"])]
    if not len(bad):
        return
    first, count = int(bad["iteration"].min()), int(bad["iteration"].nunique())
    ranks = sorted(int(rank) for rank in bad[bad["iteration"] == first]["rank"])
    yield Verdict(
        "loss",
        f"the loss was not finite in {count} of {rows['iteration'].nunique()} iterations, first at iteration {first} on {rank_names(ranks, rows['rank'].nunique())}",
        {"problem": "not finite", "iteration": first, "ranks": ranks, "iterations": count},
        "stats[~numpy.isfinite(stats['loss'])][['rank', 'iteration', 'loss']]",
        "nan_guard leaves such steps out; anomaly_detection finds the operation; a lower learning rate or bf16 may avoid it",
        1.0,
    )


def _course(means: Floats) -> Iterator[Verdict]:
    """Whether the loss over all ranks never moved, or ended far above where it began."""
    part = min(WINDOW, len(means) // 4)
    began, ended = float(np.median(means[:part])), float(np.median(means[-part:]))
    numbers = {"began": began, "ended": ended, "iterations": len(means)}
    query = "stats.query(\"phase == 'train'\").groupby('iteration')['loss'].mean()"
    if means.max() - means.min() <= STILL * max(abs(began), STILL):
        yield Verdict(
            "loss",
            f"the loss never moved: it was {began:.4g} in all of {len(means)} iterations",
            {"problem": "stood still", **numbers},
            query,
            "nothing is learned: a learning rate of 0, frozen parameters, an output or a loss that does not depend on them",
            1.0,
        )
    elif ended - began > (DIVERGED - 1) * abs(began) and ended >= np.quantile(means, 0.75):
        yield Verdict(
            "loss",
            f"the loss diverged: from {began:.4g} in the first {part} iterations to {ended:.4g} in the last",
            {"problem": "diverged", **numbers},
            query,
            "a lower learning rate, a longer warm-up or gradient_clip; checkpoint's best is from before",
            1.0,
        )


def _spikes(table: pd.DataFrame) -> Iterator[Verdict]:
    usual = table.rolling(WINDOW, center=True, min_periods=WINDOW // 2).median()
    over: Floats = (table - usual).to_numpy(dtype=float)
    mean_over = over.mean(axis=1)
    usual_mean = usual.mean(axis=1).to_numpy(dtype=float)
    spread = 1.48 * pd.Series(np.abs(mean_over)).rolling(WINDOW, center=True, min_periods=WINDOW // 2).median().to_numpy(dtype=float)
    high = mean_over > np.maximum(LEAST_DEVIATIONS * spread, LEAST_RISE * np.abs(usual_mean))
    # In units of what is usual at that point of the run, so that the noise of its beginning does not hide its end.
    relative = np.divide(mean_over, spread, out=np.zeros_like(mean_over), where=spread > 0)
    high &= (relative > LEAST_OF_USUAL_RISES * np.quantile(relative, 0.98)) | (spread == 0)
    places = np.flatnonzero(high)
    if not len(places):
        return
    episodes = 1 + int((np.diff(places) > WINDOW // 2).sum())
    worst = int(places[mean_over[places].argmax()])
    # It came from those whose own loss rose at least half as much as the highest.
    ranks = [int(rank) for rank in table.columns[over[worst] >= over[worst].max() / 2]]
    iterations = [int(table.index[place]) for place in places.tolist()]
    height = float(mean_over[worst] + usual_mean[worst])
    yield Verdict(
        "loss",
        f"the loss spiked {'once' if episodes == 1 else f'{episodes} times'}: to {height:.4g} at iteration {table.index[worst]}, "
        f"where {usual_mean[worst]:.4g} was usual; it came from {rank_names(ranks, table.shape[1])}",
        {
            "problem": "spike",
            "iteration": int(table.index[worst]),
            "loss": height,
            "usual": float(usual_mean[worst]),
            "ranks": ranks,
            "episodes": episodes,
            "iterations": iterations,
        },
        f"stats.query('iteration == {table.index[worst]}')[['rank', 'loss']]",
        "look at the batches of these ranks at that iteration; the hook loss_spike leaves such steps out and notes their samples; "
        "gradient_clip bounds their effect" if len(ranks) < table.shape[1] else "a lower learning rate, a longer warm-up or gradient_clip",
        min(0.5, 0.05 * episodes),
    )

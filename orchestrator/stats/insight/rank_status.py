"""Rank status: the current training speed, and each rank compared with the others."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orchestrator.stats.insight.gradient_syncs import extract_gradient_syncs
from orchestrator.stats.insight.robust_statistics import subtract_median_of_others
from orchestrator.stats.insight.stragglers import MIN_SHARE, MIN_SYNCS

N_ITERATIONS = 50
"""Number of last iterations from which loss and speed are computed."""


@dataclass(frozen=True)
class Speed:
    """Loss and speed over the last iterations; None if not recorded."""

    loss: float | None = None
    """Mean across all ranks."""
    step_s: float | None = None
    """Median time of an iteration."""
    samples_per_s: float | None = None
    """Samples of all ranks together, by the slowest rank's time."""


@dataclass(frozen=True)
class RankStatus:
    """A rank compared with the others: median times per iteration, or per step of several iterations."""

    work_s: float
    """Own work, without waiting for others."""
    wait_s: float
    behind_s: float
    """Own work minus the median of the others' work."""
    span: str
    """Span in which it is furthest behind."""
    slowest: bool
    """True if it is behind by 2% or more, and more than any other rank."""


def compute_speed(rows: pd.DataFrame) -> Speed:
    """Return the current speed from training rows, any number for each rank."""
    if not len(rows):
        return Speed()
    newest = rows.groupby("rank").tail(N_ITERATIONS)
    values: dict[str, float] = {"loss": newest["loss"].mean()} if "loss" in newest else {}
    if "step_s" in newest:
        values["step_s"] = newest["step_s"].median()
        if "batch_size" in newest:
            values["samples_per_s"] = newest["batch_size"].sum() / newest.groupby("rank")["step_s"].sum().max()
    return Speed(**{name: float(value) for name, value in values.items() if np.isfinite(value)})


def compare_ranks(rows: pd.DataFrame) -> dict[int, RankStatus]:
    """Return the status of each rank from training rows; empty for one rank or too few rows."""
    syncs = extract_gradient_syncs(rows) if len(rows) and rows["rank"].nunique() > 1 else None
    if syncs is None or len(syncs.iterations) < MIN_SYNCS:
        return {}
    work, wait = np.median([syncs.work, syncs.wait], axis=1)
    spans = list(syncs.local)
    behind = subtract_median_of_others(work[np.newaxis])[0]
    behind_in = subtract_median_of_others(np.median([syncs.local[span] for span in spans], axis=1))
    last = int(np.argmax(behind))
    return {
        rank: RankStatus(
            float(work[column]),
            float(wait[column]),
            float(behind[column]),
            spans[int(np.argmax(behind_in[:, column]))],
            slowest=column == last and bool(behind[column] >= MIN_SHARE * syncs.step_s),
        )
        for column, rank in enumerate(syncs.ranks)
    }

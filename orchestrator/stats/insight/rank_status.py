"""Rank status: the present speed of training, and each rank compared with the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orchestrator.stats.insight.gradient_syncs import gradient_syncs
from orchestrator.stats.insight.robust_statistics import beyond_others
from orchestrator.stats.insight.stragglers import LEAST_SHARE, LEAST_SYNCS

LAST = 50
"""Iterations that loss and speed are computed from."""


@dataclass(frozen=True)
class Speed:
    """Training over its last iterations; None if not recorded."""

    loss: float | None = None
    """Mean across all ranks."""
    step_s: float | None = None
    """Median of an iteration."""
    samples_per_s: float | None = None
    """All ranks together, by the slowest rank's time."""


@dataclass(frozen=True)
class RankStatus:
    """A rank compared with the others: medians of an iteration, or of a step of several iterations."""

    work_s: float
    """Own work, without waiting for others."""
    wait_s: float
    behind_s: float
    """Own work minus the median of the others' work."""
    span: str
    """The span in which it was behind most."""
    slowest: bool
    """True if it is behind by 2% or more, and more than any other rank."""


def speed(rows: pd.DataFrame) -> Speed:
    """Return the present speed from training rows, any number of them for each rank."""
    if not len(rows):
        return Speed()
    newest = rows.groupby("rank").tail(LAST)
    values: dict[str, float] = {"loss": newest["loss"].mean()} if "loss" in newest else {}
    if "step_s" in newest:
        values["step_s"] = newest["step_s"].median()
        if "batch_size" in newest:
            values["samples_per_s"] = newest["batch_size"].sum() / newest.groupby("rank")["step_s"].sum().max()
    return Speed(**{name: float(value) for name, value in values.items() if np.isfinite(value)})


def rank_statuses(rows: pd.DataFrame) -> dict[int, RankStatus]:
    """Return the status of each rank from training rows; empty for one rank or too few rows."""
    exchanges = gradient_syncs(rows) if len(rows) and rows["rank"].nunique() > 1 else None
    if exchanges is None or len(exchanges.iterations) < LEAST_SYNCS:
        return {}
    work, wait = np.median([exchanges.work, exchanges.wait], axis=1)
    spans = list(exchanges.local)
    behind = beyond_others(work[np.newaxis])[0]
    behind_in = beyond_others(np.median([exchanges.local[span] for span in spans], axis=1))
    last = int(np.argmax(behind))
    return {
        rank: RankStatus(
            float(work[column]),
            float(wait[column]),
            float(behind[column]),
            spans[int(np.argmax(behind_in[:, column]))],
            slowest=column == last and bool(behind[column] >= LEAST_SHARE * exchanges.step_s),
        )
        for column, rank in enumerate(exchanges.ranks)
    }

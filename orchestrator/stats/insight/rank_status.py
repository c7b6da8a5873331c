"""Rank status: how fast training goes at the moment, and how each rank does beside the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orchestrator.stats.insight.gradient_syncs import gradient_syncs
from orchestrator.stats.insight.robust_statistics import beyond_others
from orchestrator.stats.insight.stragglers import LEAST_SHARE, LEAST_SYNCS

LAST = 50
"""The iterations that loss and speed are taken from."""


@dataclass(frozen=True)
class Speed:
    """Training over its last iterations; what was not recorded is None."""

    loss: float | None = None
    """The mean over all ranks."""
    step_s: float | None = None
    """The median of an iteration."""
    samples_per_s: float | None = None
    """Of all ranks together, by the time of the slowest."""


@dataclass(frozen=True)
class RankStatus:
    """One rank beside the others: medians over an iteration, or over a step where several iterations share one."""

    work_s: float
    """Its own work: what it did without waiting for the others."""
    wait_s: float
    """What it waited for the others."""
    behind_s: float
    """How much longer its work took than that of the others, by their median."""
    span: str
    """Where it was behind most."""
    slowest: bool
    """Whether the others wait for it: behind by 2 % or more, and by more than any other rank."""


def speed(rows: pd.DataFrame) -> Speed:
    """What the newest rows of training come to. `rows` are of `train` alone, any number of them for each rank."""
    if not len(rows):
        return Speed()
    newest = rows.groupby("rank").tail(LAST)
    found: dict[str, float] = {"loss": newest["loss"].mean()} if "loss" in newest else {}
    if "step_s" in newest:
        found["step_s"] = newest["step_s"].median()
        if "batch_size" in newest:
            found["samples_per_s"] = newest["batch_size"].sum() / newest.groupby("rank")["step_s"].sum().max()
    return Speed(**{name: float(value) for name, value in found.items() if np.isfinite(value)})


def rank_statuses(rows: pd.DataFrame) -> dict[int, RankStatus]:
    """How each rank does, by its number; nothing for one rank alone, or where too few rows tell. `rows` are of `train`
    alone."""
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

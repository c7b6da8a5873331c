"""Regression: whether a run is slower than another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate import quantities
from orchestrator.stats.aggregate.spans import SPANS
from orchestrator.stats.insight.finding import Finding
from orchestrator.stats.insight.robust_statistics import Floats, block_medians, median_error

LEAST_CHANGE = 0.03
"""A smaller loss of throughput is not worth a finding."""


@dataclass(frozen=True)
class Throughput:
    """How fast a run trained, beside another."""

    samples_per_s: float
    """Over all ranks; iterations a second where the table has no batch_size."""
    other_samples_per_s: float
    ratio: float
    """This run's by the other's; 1 is as fast."""
    low: float
    """Lower bound of the ratio's 95 % confidence interval."""
    high: float
    """Upper bound."""


def throughput(stats: pd.DataFrame, other: pd.DataFrame) -> Throughput | None:
    """Compares median speeds; None where one of the runs was not timed, or is shorter than 16 iterations."""
    ours, theirs = _times(stats), _times(other)
    if ours is None or theirs is None:
        return None
    (mine, my_samples), (its, its_samples) = ours, theirs
    my_blocks, its_blocks = block_medians(np.log(mine)), block_medians(np.log(its))
    change = math.log(my_samples / its_samples) - float(np.median(my_blocks) - np.median(its_blocks))
    error = math.hypot(float(median_error(my_blocks)), float(median_error(its_blocks)))
    return Throughput(
        my_samples / math.exp(float(np.median(my_blocks))),
        its_samples / math.exp(float(np.median(its_blocks))),
        math.exp(change),
        math.exp(change - 1.96 * error),
        math.exp(change + 1.96 * error),
    )


def regression(stats: pd.DataFrame, other: pd.DataFrame, name: str = "the other run") -> Iterator[Finding]:
    """A throughput below another run's, with the span that takes longer."""
    compared = throughput(stats, other)
    if compared is None or compared.high >= 1 or compared.ratio > 1 - LEAST_CHANGE:
        return
    longer = _longer(stats, other)
    span = max(longer, key=lambda key: longer[key]) if longer else None
    because = (
        f"; {span} takes {quantities.seconds(longer[span])} longer per iteration" if span and longer[span] > 0 else ""
    )
    yield Finding(
        "regression",
        f"{1 - compared.ratio:.1%} less throughput than {name}: {compared.samples_per_s:.4g} samples/s for"
        f" {compared.other_samples_per_s:.4g} ({1 - compared.high:.1%} to {1 - compared.low:.1%} less with 95 %"
        f" confidence){because}",
        {
            **asdict(compared),
            "span": span,
            "longer_s": longer,
        },
        'stats.query("phase == \'train\'").median(numeric_only=True) - other.query("phase =='
        " 'train'\").median(numeric_only=True)",
        "compare the experiments and versions (run.json) and the span that grew; measure again where the machines were"
        " shared",
        1 - compared.ratio,
    )


def _times(stats: pd.DataFrame) -> tuple[Floats, float] | None:
    """Seconds of each iteration, as the ranks live it together, and the samples of one."""
    rows = stats[stats["phase"] == "train"]
    if "step_s" not in rows:
        return None
    times = rows.groupby("iteration")["step_s"].median().dropna().to_numpy(dtype=float)[2:]
    times = times[times > 0]
    if len(times) < 16:
        return None
    samples = float(rows.groupby("rank")["batch_size"].median().sum()) if "batch_size" in rows else 1.0
    return times, samples


def _longer(stats: pd.DataFrame, other: pd.DataFrame) -> dict[str, float]:
    ours, theirs = (table[table["phase"] == "train"] for table in (stats, other))
    spans = [name for name in SPANS if name in ours and name in theirs]
    return {name: float(ours[name].median() - theirs[name].median()) for name in spans}

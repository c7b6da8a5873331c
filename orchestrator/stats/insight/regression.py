"""Regression: a run that trains slower than another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orchestrator.stats.aggregate import quantities
from orchestrator.stats.aggregate.compare import SHORTEST, blocks, compare_costs, iterations
from orchestrator.stats.aggregate.spans import SPANS
from orchestrator.stats.insight.finding import Finding
from orchestrator.stats.read.query import TRAINING, Rows

LEAST_CHANGE = 0.03
"""The smallest loss of throughput that is a finding."""


@dataclass(frozen=True)
class Throughput:
    """The training speed of a run and of another."""

    samples_per_s: float
    """Median over all ranks; iterations per second if the rows have no batch_size."""
    other_samples_per_s: float
    finding: str
    """`less`, `more`, or `noise`, as `compare` tells."""

    @property
    def ratio(self) -> float:
        return self.samples_per_s / self.other_samples_per_s


def throughput(rows: Rows, other: Rows) -> Throughput | None:
    """Compare the speeds of two runs; None if one was not timed or is too short."""
    tables = [iterations(rows), iterations(other)]
    if any(len(table) < SHORTEST or not (table["step_s"] > 0).all() for table in tables):
        return None
    has_samples = all("samples_per_s" in table for table in tables)
    mine, others = (
        (table["samples_per_s"] if has_samples else 1 / table["step_s"]).to_numpy(dtype=float) for table in tables
    )
    speed, other_speed = float(np.median(mine)), float(np.median(others))
    return Throughput(speed, other_speed, compare_costs(speed - other_speed, blocks(others), blocks(mine)))


def regression(rows: Rows, other: Rows, compared: Throughput, name: str = "the other run") -> Iterator[Finding]:
    """Yield a finding if the throughput is below another run's, with the span that takes longer."""
    if compared.finding != "less" or compared.ratio > 1 - LEAST_CHANGE:
        return
    spans = {span: span for span in SPANS if span in rows.columns and span in other.columns}
    medians = [run.quantiles(spans, [0.5], TRAINING) for run in (rows, other)]
    longer = {span: float((medians[0] - medians[1])[span].iloc[0]) for span in spans}
    span = max(longer, key=lambda key: longer[key]) if longer else None
    because = (
        f"; {span} takes {quantities.seconds(longer[span])} longer per iteration" if span and longer[span] > 0 else ""
    )
    yield Finding(
        "regression",
        f"{1 - compared.ratio:.1%} less throughput than {name}: {compared.samples_per_s:.4g} samples/s instead of"
        f" {compared.other_samples_per_s:.4g}{because}",
        {
            "samples_per_s": compared.samples_per_s,
            "other_samples_per_s": compared.other_samples_per_s,
            "ratio": compared.ratio,
            "span": span,
            "longer_s": longer,
        },
        'stats.query("phase == \'train\'").median(numeric_only=True) - other.query("phase =='
        " 'train'\").median(numeric_only=True)",
        "compare the experiments and versions (run.json) and the span that grew; measure again if the machines were"
        " shared",
        1 - compared.ratio,
    )

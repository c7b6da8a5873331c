"""Rows in short, beside the rows."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.stats.aggregate import row_blocks
from orchestrator.stats.insight import diagnose, iteration_sample
from orchestrator.stats.read.query import Rows
from tests.orchestrator.stats.insight.runs import slower, training


def of_several(monkeypatch: pytest.MonkeyPatch, together: int, rows: int, numbers: int) -> None:
    """From now on so many iterations are a block, in a table of so many rows and columns of numbers."""
    monkeypatch.setattr(row_blocks, "MAX_ROWS_AS_BLOCKS", 0)
    monkeypatch.setattr(row_blocks, "MAX_STORED_NUMBERS", 4 * rows * numbers // together)


def test_diagnosis_of_blocks_equals_that_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is slow, a hook that takes long twice, a loss that is none, memory that grows and is nearly full; in
    stretches."""
    monkeypatch.setattr(iteration_sample, "MAX_ITERATIONS", 200)
    stats = training(4, 400, change=slower("data_wait_s", 2, 0.03))
    grown = {
        "rss_bytes": 1e9 + 1e6 * stats["iteration"],
        "loss": np.where(stats.index == 99, np.nan, 1.0 + stats["rank"]),
    }
    stats = stats.assign(**grown)
    stats.loc[stats["iteration"].isin([100, 300]) & (stats["rank"] == 1), ["hooks_s", "step_s"]] += 9.0
    whole = diagnose(stats)
    of_several(monkeypatch, 7, len(stats), len(Rows.of(stats).numbers) + 1)
    found = diagnose(stats)
    for finding, expected in zip(found.findings, whole.findings, strict=True):
        assert (finding.kind, finding.numbers.get("rank")) == (expected.kind, expected.numbers.get("rank"))
        assert finding.weight == pytest.approx(expected.weight, rel=0.05)
    assert {one.kind for one in found.findings} == {"straggler", "loss", "memory"}
    assert found.figures == pytest.approx(whole.figures)

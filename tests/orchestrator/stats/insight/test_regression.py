from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from orchestrator.stats.insight.finding import Finding
from orchestrator.stats.insight.regression import regression, throughput
from orchestrator.stats.read.query import Rows
from tests.orchestrator.stats.insight.runs import training


def longer(seconds: float) -> Any:
    def change(own: dict[str, Any]) -> None:
        own["loss_s"] += seconds

    return change


def found(rows: pd.DataFrame, other: pd.DataFrame, name: str) -> list[Finding]:
    compared = throughput(Rows.of(rows), Rows.of(other))
    assert compared is not None
    return list(regression(Rows.of(rows), Rows.of(other), compared, name))


def test_a_slower_run_says_by_how_much_and_which_span() -> None:
    """0.12 s for 0.1 s an iteration are five sixths of the throughput; two ranks of 32 make 640 samples in 1 s."""
    (finding,) = found(training(change=longer(0.02), batch_size=32), training(batch_size=32), "runs/other")
    numbers = finding.numbers
    assert numbers["ratio"] == pytest.approx(5 / 6, rel=0.01)
    assert numbers["other_samples_per_s"] == pytest.approx(640, rel=0.02)
    assert numbers["span"] == "loss_s"
    assert numbers["longer_s"]["loss_s"] == pytest.approx(0.02, rel=0.02)
    assert "less throughput than runs/other" in finding.sentence


@pytest.mark.parametrize("seconds", [0.0, 0.002, -0.001])
def test_a_run_as_fast_or_faster_is_no_regression(seconds: float) -> None:
    assert found(training(change=longer(seconds)), training(), "") == []


def test_larger_batches_in_the_same_time_are_more_throughput() -> None:
    compared = throughput(Rows.of(training(batch_size=64)), Rows.of(training(batch_size=32)))
    assert compared is not None
    assert compared.ratio == pytest.approx(2)


def test_runs_without_times_cannot_be_compared() -> None:
    assert throughput(Rows.of(training().drop(columns="step_s")), Rows.of(training())) is None
    assert throughput(Rows.of(training()), Rows.of(training(iterations=10))) is None

"""Statistics of rows in reports, against the same rows by NumPy."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from hooks import Hook, HookError, Plan, State
from hooks.stats.row_stats import STATISTICS, RowStats
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from tests.tasks import Points, Rows, experiment

ALL = [f"loss/{statistic}" for statistic in STATISTICS]
REFERENCE = {
    "min": min,
    "median": np.median,
    "mean": np.mean,
    "p95": lambda values: np.percentile(values, 95),
    "max": max,
    "sum": math.fsum,
}


class Sparse(Hook):
    """Records a column in every fourth iteration, and NaN in the eighth."""

    def on_step(self, state: State) -> None:
        if state.phase == "train" and state.iteration % 4 == 0:
            state.record(
                sparse=torch.tensor(float(state.iteration)) if state.iteration != 8 else math.nan
            )


def trained(report: list[str]) -> tuple[list[dict[str, Any]], Rows]:
    rows = Rows()
    hooks: dict[str, Hook] = {"row_stats": RowStats(report), "sparse": Sparse()}
    loop = Loop(Points(), experiment(batch_size=4), hooks, RunContext(recorder=rows))
    return [report.metrics for report in loop.run()], rows


@pytest.mark.parametrize("reach", [2, 500])
def test_each_report_has_the_statistics_of_its_own_training_iterations(
    monkeypatch: pytest.MonkeyPatch, reach: int
) -> None:
    monkeypatch.setattr(RowStats, "reach", reach)
    reports, rows = trained([*ALL, "sparse/sum"])
    assert [metrics["stats/sparse/sum"] for metrics in reports] == [4 + 12, 16 + 20 + 24]
    for epoch, metrics in enumerate(reports):
        losses = [
            loss for loss, own in rows.columns("loss", "epoch", phase="train") if own == epoch
        ]
        assert len(losses) == 13
        for name, reference in REFERENCE.items():
            assert metrics[f"stats/loss/{name}"] == pytest.approx(reference(losses)), name


def test_column_with_text_is_refused_by_name() -> None:
    class Labels(Hook):
        def on_step(self, state: State) -> None:
            state.record(label="dog")

    hooks: dict[str, Hook] = {"row_stats": RowStats(["label/mean"]), "labels": Labels()}
    loop = Loop(Points(), experiment(batch_size=4), hooks, RunContext(recorder=Rows()))
    with pytest.raises(HookError, match="report: the column 'label' has text, such as 'dog'"):
        list(loop.run())


def test_column_that_no_row_has_is_warned_of_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    trained(["losss/max", "loss/max", "sparse/sum"])
    message = (
        "stats/losss/max is in no report: no training row has a number in that column"
        " (did you mean 'loss'?)"
    )
    assert [record.message for record in caplog.records] == [message]


def test_iterations_beyond_the_recent_rows_count() -> None:
    """Each iteration's row has its number; 1,300 rows are in one phase, and State keeps the last
    1,000."""
    hook = RowStats(["iteration/sum"])
    state = State(phase="train")
    metrics = {}
    plan = Plan({"row_stats": hook})
    recent = state.recent
    for iteration in range(1, 1301):
        state.iteration = state.phase_iteration = iteration
        plan.fire("on_step", state)
        recent.append({"phase": "train", "iteration": iteration})
    for iteration in range(1, 40):
        recent.append({"phase": "val", "iteration": iteration})
    hook.on_report(state, metrics)
    assert metrics == {"stats/iteration/sum": 1300 * 1301 / 2}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0] * 20 + [math.inf], 1.0),
        ([1.0] * 30 + [math.inf] * 30, math.inf),
        ([1.0, 2.0, math.inf], math.inf),
        ([-math.inf] * 5, -math.inf),
    ],
)
def test_quantile_next_to_an_infinity_is_the_value_there(
    values: list[float], expected: float
) -> None:
    """The norm of a gradient that fp16 has overflowed is infinite. Of 21 values, the 95th
    percentile is exactly the 20th."""
    assert STATISTICS["p95"](np.array(values)) == expected


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("phase/mean", "'phase/mean': phase is text, which has no statistics"),
        ("node/max", "'node/max': node is text, which has no statistics"),
        ("rank/max", "'rank/max': rank is the same in all rows of a rank"),
        ("step_s/p59", "no statistic 'p59' in 'step_s/p59': did you mean 'p95'?"),
        ("step_s/total", "available: min, median, mean, p95, max, sum"),
        ("p95", "expected COLUMN/STATISTIC such as step_s/p95, got 'p95'"),
        ("val/accuracy/max", "expected COLUMN/STATISTIC"),
    ],
)
def test_invalid_statistic_is_refused(written: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        RowStats([written])
    assert message in str(refused.value)

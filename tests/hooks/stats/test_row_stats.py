"""Statistics of rows in reports, against the same rows by NumPy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hooks import Hook, Interval, Plan, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.stats.row_stats import STATISTICS, RowStats
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
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
            state.record(sparse=torch.tensor(float(state.iteration)) if state.iteration != 8 else math.nan)


def trained(
    report: list[str], root: Path | None = None, restore: str | None = None, world: World | None = None, **fields: Any
) -> tuple[list[dict[str, Any]], Rows]:
    world = world or World()
    rows = Rows()
    store = CheckpointStore(Storage(root), master=world.is_master) if root else None
    hooks: dict[str, Hook] = {"row_stats": RowStats(report), "sparse": Sparse()}
    if root:
        hooks["checkpoint"] = Checkpoint(every=Interval(5, "steps"), keep=None)
    loop = Loop(
        Points(),
        experiment(**{"epochs": 2, "batch_size": 4, **fields}),
        hooks,
        RunContext(store=store, recorder=rows, world=world),
    )
    if restore:
        loop.restore(restore)
    return [report.metrics for report in loop.run()], rows


@pytest.mark.parametrize("reach", [2, 500])
def test_each_report_has_the_statistics_of_its_own_training_iterations(
    monkeypatch: pytest.MonkeyPatch, reach: int
) -> None:
    monkeypatch.setattr(RowStats, "reach", reach)
    reports, rows = trained(ALL)
    assert len(reports) == 2
    for epoch, metrics in enumerate(reports):
        losses = [loss for loss, own in rows.columns("loss", "epoch", phase="train") if own == epoch]
        assert len(losses) == 13
        for name, reference in REFERENCE.items():
            assert metrics[f"stats/loss/{name}"] == pytest.approx(reference(losses)), name


def test_iterations_beyond_the_recent_rows_count() -> None:
    """Each iteration's row holds its number, and 1,300 of them pass in one phase, where the last 1,000 are
    remembered."""
    hook, state, metrics = RowStats(["iteration/sum"]), State(phase="train"), {}
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


def _on_rank(rank: int, world_size: int) -> tuple[list[dict[str, Any]], list[tuple[Any, ...]]]:
    reports, rows = trained(ALL, world=World(rank, world_size, rank))
    return reports, rows.columns("epoch", "loss", phase="train")


def test_every_rank_computes_statistics_over_all_ranks() -> None:
    (first, own), (second, other) = on_ranks(_on_rank)
    assert [m["stats/loss/p95"] for m in first] == [m["stats/loss/p95"] for m in second]
    for epoch, metrics in enumerate(first):
        losses = [loss for number, loss in [*own, *other] if number == epoch]
        for name, reference in REFERENCE.items():
            assert metrics[f"stats/loss/{name}"] == pytest.approx(reference(losses)), name


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("step_s/p59", "no statistic 'p59' in 'step_s/p59': did you mean 'p95'?"),
        ("step_s/total", "there are min, median, mean, p95, max, sum"),
        ("p95", "expected COLUMN/STATISTIC such as step_s/p95, got 'p95'"),
        ("val/accuracy/max", "expected COLUMN/STATISTIC"),
    ],
)
def test_invalid_statistic_is_refused(written: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        RowStats([written])
    assert message in str(refused.value)

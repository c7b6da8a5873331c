"""Norms against a step of torch's optimizers done by hand."""

import gc
import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hooks import Hook, Plan, State
from hooks.interval import Interval
from hooks.stats.optimizer_stats import OptimizerStats
from hooks.training.freeze_parameters import FreezeParameters
from hooks.training.gradient_clip import GradientClip
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.testing import train
from tests.tasks import Points, Rows, experiment

EVERY_STEP = Interval(1, "steps")


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    skip: bool = False,
    hook: Hook | None = None,
) -> State:
    """One optimizer step as the loop makes it."""
    state = State(
        module=model,
        optimizer=optimizer,
        artifacts=folder,
        phase="train",
        epoch=1,
        iteration=8,
        step=4,
    )
    plan = Plan({"optimizer": hook or OptimizerStats(every=EVERY_STEP)})
    plan.fire("on_start", state)
    torch.manual_seed(0)
    model(torch.randn(5, 3)).square().sum().backward()
    plan.fire("on_gradients", state)
    if not skip:
        optimizer.step()
        plan.fire("on_update", state)
    optimizer.zero_grad()
    plan.fire("on_phase_end", state)
    return state


def _flat(tensors: Any) -> float:
    return math.sqrt(sum(value.double().square().sum().item() for value in tensors))


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ],
    ids=["AdamW", "SGD"],
)
def test_norms_are_those_of_a_step_by_hand(tmp_path: Path, make: Any) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    twin = deepcopy(model)
    trained = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in trained]
    optimizer = make(twin.parameters())
    torch.manual_seed(0)
    twin(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    state = _step(model, make(model.parameters()), tmp_path)
    expected = {
        "param_norm": _flat(trained),
        "step_grad_norm": _flat(parameter.grad for parameter in trained),
        "update_norm": _flat(after - old for after, old in zip(trained, before, strict=True)),
    }
    expected["update_ratio"] = expected["update_norm"] / expected["param_norm"]
    assert {column: value.item() for column, value in state.row.items()} == pytest.approx(
        expected, rel=1e-5
    )


def test_sparse_gradients_count(tmp_path: Path) -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 2, sparse=True)

        def forward(self, batch: Any) -> Any:
            return self.table(torch.tensor([1, 1, 3]))

    model = Bag()
    rows = model.table.weight.detach()[[1, 3]]
    state = _step(model, torch.optim.SGD(model.parameters(), lr=0.0), tmp_path)
    assert state.row["step_grad_norm"].item() == pytest.approx(
        _flat([rows[0] * 4, rows[1] * 2]), rel=1e-5
    )


def test_norms_of_a_step_without_gradients_are_zero() -> None:
    hooks = {"frozen": FreezeParameters("*"), "optimizer": OptimizerStats(every=EVERY_STEP)}
    row = train(hooks, steps=1).rows[0]
    assert [row[column] for column in ("step_grad_norm", "update_norm", "update_ratio")] == [
        0,
        0,
        0,
    ]
    assert row["param_norm"] > 0


def test_skipped_step_frees_the_copied_parameters(tmp_path: Path) -> None:
    hook = OptimizerStats(every=EVERY_STEP)
    model = nn.Linear(3, 41)
    state = _step(
        model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, skip=True, hook=hook
    )
    assert state.row.keys() == {"step_grad_norm"}
    assert [
        kept for kept in gc.get_objects() if type(kept) is torch.Tensor and kept.shape == (41, 3)
    ] == []


def test_measures_the_clipped_gradients_at_its_steps_with_accumulation() -> None:
    """Twelve micro-batches make six steps; what the optimizer got is what clipping left of the
    gradient."""
    rows = Rows()
    hooks = {
        "optimizer": OptimizerStats(every=Interval(2, "steps")),
        "clip": GradientClip(max_norm=0.01),
    }
    list(
        Loop(
            Points(train=44, val=11), experiment(accumulate=2), hooks, RunContext(recorder=rows)
        ).run()
    )
    measured = [row for row in rows.rows if "update_norm" in row]
    assert [row["step"] for row in measured] == [2, 4, 6]
    assert [row["step_grad_norm"] for row in measured] == pytest.approx([0.01] * 3, rel=1e-3)
    assert all(row["grad_norm"] > 0.02 for row in measured)

"""Norms against a step of torch's optimizers done by hand."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from hooks import Hook, Plan, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.interval import Interval
from hooks.stats.optimizer_stats import OptimizerStats
from hooks.training.gradient_clip import GradientClip
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.sections.experiment import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.tasks import Points, Rows, experiment

EVERY_STEP = Interval(1, "steps")


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, skip: bool = False, hook: Hook | None = None
) -> State:
    """One optimizer step as the loop makes it."""
    state = State(module=model, optimizer=optimizer, artifacts=folder, phase="train", epoch=1, iteration=8, step=4)
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
    ("make", "kinds"),
    [
        (lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1), ("exp_avg", "exp_avg_sq")),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), ("momentum_buffer",)),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1), ()),
    ],
    ids=["AdamW", "momentum", "SGD"],
)
def test_norms_are_those_of_a_step_by_hand(tmp_path: Path, make: Any, kinds: tuple[str, ...]) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    twin = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    twin.load_state_dict(model.state_dict())
    optimizer = make(twin.parameters())
    before = {name: p.detach().clone() for name, p in twin.named_parameters()}
    torch.manual_seed(0)
    twin(torch.randn(5, 3)).square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in twin.named_parameters() if p.grad is not None}
    optimizer.step()
    after = {name: p.detach() for name, p in twin.named_parameters()}
    state = _step(model, make(model.parameters()), tmp_path)
    expected = {
        "param_norm": after,
        "step_grad_norm": gradients,
        "update_norm": {name: after[name] - before[name] for name in before},
        **{f"{kind}_norm": {name: optimizer.state[p][kind] for name, p in twin.named_parameters()} for kind in kinds},
    }
    assert set(state.row) == {*expected, "update_ratio"}
    for column, values in expected.items():
        assert state.row[column].item() == pytest.approx(_flat(values.values()), rel=1e-5)
    assert state.row["update_ratio"].item() == pytest.approx(
        _flat(expected["update_norm"].values()) / _flat(after.values()), rel=1e-5
    )
    table = pd.read_parquet(tmp_path / "optimizer").set_index("layer")
    assert table.index.tolist() == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert set(table["step"]) == {5}
    assert set(table["iteration"]) == {9}
    for column, values in expected.items():
        assert table[column].tolist() == pytest.approx([_flat([value]) for value in values.values()], rel=1e-5)
    assert table["update_ratio"].tolist() == pytest.approx(
        (table["update_norm"] / table["param_norm"]).tolist(), rel=1e-5
    )


def test_a_parameter_without_gradient_has_no_number_and_a_frozen_one_no_row(tmp_path: Path) -> None:
    model = nn.ModuleDict(
        {"used": nn.Linear(3, 2, bias=False), "frozen": nn.Linear(3, 2), "idle": nn.Linear(3, 2, bias=False)}
    )
    model["frozen"].requires_grad_(False)
    model.forward = model["used"].forward
    state = _step(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), tmp_path)
    table = pd.read_parquet(tmp_path / "optimizer").set_index("layer")
    assert table.index.tolist() == ["used.weight", "idle.weight"]
    assert table["step_grad_norm"].isna().tolist() == [False, True]
    assert table["momentum_buffer_norm"].isna().tolist() == [False, True]
    assert table["update_norm"].tolist()[1] == 0
    assert state.row["step_grad_norm"].item() == pytest.approx(table["step_grad_norm"].iloc[0])


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
    assert state.row["step_grad_norm"].item() == pytest.approx(_flat([rows[0] * 4, rows[1] * 2]), rel=1e-5)


def test_a_step_that_is_left_out_measures_nothing_and_gives_the_copy_back(tmp_path: Path) -> None:
    hook, model = OptimizerStats(every=EVERY_STEP), nn.Linear(3, 41)
    state = _step(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, skip=True, hook=hook)
    assert state.row == {}
    assert [kept for kept in gc.get_objects() if type(kept) is torch.Tensor and kept.shape == (41, 3)] == []
    assert not (tmp_path / "optimizer").exists()


# In the loop


def _train(folder: Path, hooks: dict[str, Hook] | None = None, restore: bool = False, **fields: Any) -> Rows:
    store, rows = CheckpointStore(Storage(folder / "checkpoints"), "points", True), Rows()
    ours = {
        "optimizer": OptimizerStats(every=Interval(2, "steps")),
        "checkpoint": Checkpoint(every=Interval(3, "steps"), keep=None),
    }
    adam = Component(type="Adam", lr=0.01)
    task = Points(train=44, val=11)
    loop = Loop(
        task,
        experiment(optimizer=adam, **fields),
        ours | (hooks or {}),
        RunContext(store=store, artifacts=folder, recorder=rows),
    )
    if restore:
        loop.restore("step-00000003")
    list(loop.run())
    return rows


def test_it_measures_at_its_steps_under_accumulation_and_clipping(tmp_path: Path) -> None:
    """Twelve micro-batches make six steps; what the optimizer got is what clipping left of the gradient."""
    rows = _train(tmp_path, {"clip": GradientClip(max_norm=0.01)}, accumulate=2).rows
    measured = [row for row in rows if "update_norm" in row]
    assert [row["step"] for row in measured] == [2, 4, 6]
    assert [row["step_grad_norm"].item() for row in measured] == pytest.approx([0.01] * 3, rel=1e-3)
    assert all(row["grad_norm"].item() > 0.02 for row in measured)
    table = pd.read_parquet(tmp_path / "optimizer")
    assert table.groupby("step")["update_norm"].apply(_flat_column).tolist() == pytest.approx(
        [row["update_norm"].item() for row in measured], rel=1e-5
    )
    assert table.groupby("step")["iteration"].first().to_dict() == {row["step"]: row["iteration"] for row in measured}


def _flat_column(values: Any) -> float:
    return math.sqrt((values.astype(float) ** 2).sum())

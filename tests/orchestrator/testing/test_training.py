from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from hooks import EMA, GradientClip, Hook, State
from orchestrator.errors import ConfigError
from orchestrator.testing import SmallTask, train


@dataclass
class Averaged(SmallTask):
    """Requires a hook."""

    def required_hooks(self) -> Mapping[str, Any]:
        return {"average": EMA(decay=0.5), "gradient_clip": True}


@dataclass
class OwnOptimizer(SmallTask):
    """Brings an optimizer."""

    def optimizer(self, model: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=lr)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5)


def test_train_returns_reports_and_rows() -> None:
    trained = train({"clip": GradientClip()}, steps=4)
    rows = [row for row in trained.rows if row["phase"] == "train"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["grad_norm"] > 0 for row in rows)
    assert trained.reports[-1]["val/accuracy"] <= 1
    assert trained.state.step == 4


def test_required_hooks_are_added_unless_one_of_their_kind_is_given() -> None:
    assert list(train(task=Averaged()).state.evaluations) == [""]
    assert train(task=Averaged()).state.evaluations[""].provider == "average"
    assert train({"mine": EMA(decay=0.1)}, Averaged()).state.evaluations[""].provider == "mine"


def test_train_uses_one_thread_and_restores_the_number() -> None:
    seen: list[int] = []

    class Looks(Hook):
        def on_start(self, state: State) -> None:
            seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train({"looks": Looks()}, steps=1)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_train_configures_the_own_optimizer_of_a_task() -> None:
    adagrad, sgd = (
        train(task=OwnOptimizer(), steps=1, **said).state.optimizer
        for said in ({"optimizer": {"lr": 0.5}}, {"optimizer": {"type": "SGD"}})
    )
    assert isinstance(adagrad, torch.optim.Adagrad)
    assert adagrad.defaults["lr"] == 0.5
    assert isinstance(sgd, torch.optim.SGD)
    assert isinstance(
        train(task=OwnOptimizer(), steps=1).state.scheduler, torch.optim.lr_scheduler.ConstantLR
    )


def test_unknown_experiment_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="epoch"):
        train(epoch=3)

"""Buffers that a forward pass makes or enlarges, and parameters that are frozen, in checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, SequentialSampler, TensorDataset

from hooks import Hook, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.interval import Interval
from hooks.training.ema import EMA
from orchestrator import Task, run
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.storage import Storage
from tests.tasks import Points, described, experiment


class Positions(nn.Module):
    """Counts how often it has used each position, in a buffer that begins short and grows."""

    def __init__(self, kind: str, length: int) -> None:
        super().__init__()
        self.is_persistent = "persistent" in kind
        self.layer = nn.Linear(length, 1)
        if "none" in kind:
            self.register_buffer("used", None, persistent=self.is_persistent)
        elif "short" in kind:
            self.register_buffer("used", torch.zeros(1), persistent=self.is_persistent)
        elif "expanded" in kind:
            self.register_buffer(
                "used", torch.zeros(1).expand(length), persistent=self.is_persistent
            )
        self.register_buffer("mask", torch.ones(length), persistent=False)

    def forward(self, points: Tensor) -> Tensor:
        needed = points.shape[1]
        used = getattr(self, "used", None)
        if used is None or len(used) < needed:
            self.register_buffer("used", torch.zeros(needed), persistent=self.is_persistent)
        if self.training:
            self.used = self.used + points.detach().mean(0)
        return self.layer(points * self.mask + self.used)


@dataclass
class Growing(Task):
    kind: str = "none"
    length: int = 3

    def model(self) -> nn.Module:
        return nn.Sequential(Positions(self.kind, self.length))

    def data(self) -> Mapping[str, Dataset[Any]]:
        points = torch.randn(12, self.length, generator=torch.Generator().manual_seed(1))
        return {"train": TensorDataset(points), "val": TensorDataset(points[:4])}

    def sampler(self, dataset: Any, phase: str) -> Any:
        return SequentialSampler(dataset)

    def batch_size(self, batch: Any) -> int:
        return len(batch[0])

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.mse_loss(output, torch.ones_like(output))


def _train(task: Task, folder: Path, restore: str | None = None, **hooks: Hook) -> dict[str, Any]:
    store = CheckpointStore(Storage(folder))
    loop = Loop(
        task,
        experiment(batch_size=4, epochs=2),
        {"checkpoint": Checkpoint(every=Interval(1, "steps"), keep=None), **hooks},
        RunContext(store=store),
    )
    if restore:
        loop.restore(restore)
    losses = [report.metrics.get("val/loss") for report in loop.run()]
    module = loop.state.module
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        "tensors": {name: tensor.tolist() for name, tensor in tensors.items()},
        "saved": sorted(module.state_dict()),
        "loss": losses[-1] if losses else None,
    }


KINDS = ("none", "short", "expanded", "absent")


@pytest.mark.parametrize("persistent", ["", " persistent"])
@pytest.mark.parametrize("kind", KINDS)
def test_buffers_that_forward_passes_make_are_restored(
    tmp_path: Path, kind: str, persistent: str
) -> None:
    task = Growing(kind + persistent)
    whole = _train(task, tmp_path, ema=EMA(decay=0.5, buffers="ema"))
    assert ("0.used" in whole["saved"]) == bool(persistent)
    for name in ("step-00000001", "step-00000002", "step-00000004", "epoch-0002"):
        resumed = _train(task, tmp_path, name, ema=EMA(decay=0.5, buffers="ema"))
        assert resumed["tensors"] == whole["tensors"]
        assert resumed["saved"] == whole["saved"]
        if name != "epoch-0002":  # after the last validation
            assert resumed["loss"] == whole["loss"]


@pytest.mark.parametrize("kind", ["none persistent", "short", "absent", "expanded"])
def test_model_with_buffers_that_grew_is_loaded(tmp_path: Path, kind: str) -> None:
    written = described(task=f"{__name__}:Growing", task_args={"kind": kind})
    done = run(written, tmp_path, local=True)
    points = Growing().data()["val"][:4][0]
    output = done.load("last")(points)
    reported = done.metrics["val/loss"].iloc[-1]
    assert functional.mse_loss(output, torch.ones_like(output)).item() == pytest.approx(
        reported, rel=1e-6
    )


@dataclass
class Masked(Growing):
    window: int = 3

    def model(self) -> nn.Module:
        model = nn.Sequential(Positions("absent", self.length))
        model.register_buffer("causal", torch.ones(self.window, self.window), persistent=False)
        return model


def test_a_continued_run_has_the_buffers_that_its_arguments_make(tmp_path: Path) -> None:
    """Only those that a forward pass has changed come back in another shape than the model now
    gives them."""
    _train(Masked(window=3), tmp_path)
    loop = Loop(
        Masked(window=5),
        experiment(batch_size=4),
        {},
        RunContext(store=CheckpointStore(Storage(tmp_path))),
    )
    loop.restore("epoch-0002")
    assert loop.state.module.get_buffer("causal").shape == (5, 5)
    assert loop.state.module.get_buffer("0.used").shape == (3,)


# Parameters that are trained


@dataclass
class Frozen(Points):
    """Points, whose first layer is frozen if it is asked for."""

    freezes: bool = True

    def model(self) -> nn.Module:
        model = super().model()
        model[0].requires_grad_(not self.freezes)  # type: ignore[index]
        return model


class Unfreeze(Hook):
    """Train the first layer, and freeze the last one, from the end of the first epoch on."""

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train" and state.epoch == 1:
            state.module.get_submodule("0").requires_grad_(True)
            state.module.get_submodule("4").requires_grad_(False)


def test_parameters_that_a_hook_has_unfrozen_are_trained_after_a_resume(tmp_path: Path) -> None:
    whole = _train(Frozen(train=12), tmp_path, unfreeze=Unfreeze())
    for name in ("step-00000002", "step-00000004", "epoch-0002"):
        resumed = _train(Frozen(train=12), tmp_path, name, unfreeze=Unfreeze())
        assert resumed["tensors"] == whole["tensors"], name


def test_a_continued_run_trains_the_parameters_that_its_task_now_trains(tmp_path: Path) -> None:
    """Only flags that training has changed come back."""
    _train(Frozen(train=12), tmp_path)
    loop = Loop(
        Frozen(train=12, freezes=False),
        experiment(batch_size=4, epochs=3),
        {},
        RunContext(store=CheckpointStore(Storage(tmp_path))),
    )
    loop.restore("epoch-0002")
    assert all(parameter.requires_grad for parameter in loop.state.module.parameters())

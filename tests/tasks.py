"""A small task for tests: fixed random points in three classes, and a network of about a hundred
weights."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from hooks import Hook, State
from orchestrator import Experiment, Task
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.sections.training import Loader

SGD = Component(type="SGD", lr=0.1, momentum=0.9)


class PointSet(Dataset[Any]):
    """Points (5,) and their classes, with the place of each; `noisy` ones differ each time they are
    fetched."""

    def __init__(self, size: int, noisy: bool, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.points = torch.randn(size, 5, generator=generator)
        self.labels = (self.points[:, 0] > 0).long() + (self.points[:, 1] > 0.5).long()
        self.noisy = noisy

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        point = self.points[index]
        if self.noisy:
            point = point + 0.1 * (random.random() + np.random.rand() + torch.rand(()).item())
        return point, self.labels[index], index


class Blocks(nn.Module):
    """Three blocks of eight features between two layers; each is called with `named`."""

    def __init__(self, block: Callable[[], nn.Module], **named: Any) -> None:
        super().__init__()
        self.first, self.blocks, self.last = (
            nn.Linear(5, 8),
            nn.ModuleList(block() for _ in range(3)),
            nn.Linear(8, 3),
        )
        self.named = named

    def forward(self, points: Tensor) -> Tensor:
        points = self.first(points)
        for block in self.blocks:
            points = block(points, **self.named)
        return self.last(points)


@dataclass
class Points(Task):
    """Classifies points; every source of randomness and every kind of state can be switched on."""

    train: int = 52
    val: int = 23
    test: int = 0
    batch_norm: bool = False
    dropout: float = 0.0
    noisy: bool = False
    fails: bool = False
    """Raises in the loss."""

    def model(self) -> nn.Module:
        norm: nn.Module = nn.BatchNorm1d(8) if self.batch_norm else nn.Identity()
        return nn.Sequential(
            nn.Linear(5, 8), norm, nn.ReLU(), nn.Dropout(self.dropout), nn.Linear(8, 3)
        )

    def data(self) -> Mapping[str, Dataset[Any]]:
        sizes = {"train": self.train, "val": self.val, "test": self.test}
        return {
            phase: PointSet(size, self.noisy and phase == "train", seed)
            for seed, (phase, size) in enumerate(sizes.items())
            if size
        }

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        if self.fails:
            raise ArithmeticError("this loss fails on purpose")
        return functional.cross_entropy(output, batch[1])

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        return {"accuracy": (output.argmax(dim=1) == batch[1]).float()}


def experiment(**fields: Any) -> Experiment:
    """An experiment without hooks; the loop takes those as objects."""
    if "steps" not in fields:
        fields.setdefault("epochs", 2)
    loader = Loader(**fields.pop("loader", {}))
    data = {
        "name": "points",
        "task": "tests.tasks:Points",
        "batch_size": 8,
        "optimizer": SGD,
        "loader": loader,
    }
    return Experiment(**{**data, **fields})


class Rows(Recorder):
    """Keeps the rows it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def append(self, row: dict[str, Any] | None, numbers: Sequence[float] = ()) -> None:
        super().append(row, numbers)
        self.rows.append(dict(self.recent[-1]))

    def columns(self, *names: str, phase: str | None = None) -> list[tuple[Any, ...]]:
        return [
            tuple(row[name] for name in names) for row in self.rows if phase in (None, row["phase"])
        ]


class Seen(Hook):
    """Keeps the places of the samples of each training batch."""

    def __init__(self) -> None:
        self.indices: list[list[int]] = []

    def on_batch(self, state: State) -> None:
        if state.phase == "train":
            self.indices.append(state.batch[2].tolist())


def numbers(module: nn.Module) -> dict[str, Any]:
    """Weights and buffers as plain numbers, which compare bit for bit and travel between
    processes."""
    return {name: tensor.tolist() for name, tensor in module.state_dict().items()}


def plain(value: Any) -> Any:
    """Nested values with lists for tensors, joined from all ranks where they are sharded. They
    compare bit for bit."""
    if isinstance(value, Tensor):
        return (value.full_tensor() if hasattr(value, "full_tensor") else value).tolist()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@dataclass
class Breaks(Hook):
    """Fails at a training iteration."""

    iteration: int = 3

    def on_gradients(self, state: State) -> None:
        if state.iteration + 1 == self.iteration:
            raise ZeroDivisionError("broken on purpose")


@dataclass
class Overflows(Hook):
    """Makes the loss of a training iteration infinite, so that under fp16 its step is left out."""

    iteration: int = 8

    def on_loss(self, state: State) -> None:
        if state.phase == "train" and state.iteration + 1 == self.iteration:
            assert state.loss is not None
            state.loss = state.loss * float("inf")


def described(**fields: Any) -> CheckedExperiment:
    """An experiment as a YAML file gives it, with the hooks every run has."""
    written = {
        "name": "points",
        "task": "tests.tasks:Points",
        "epochs": 2,
        "batch_size": 8,
        "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
        **fields,
    }
    return make_experiment(written)

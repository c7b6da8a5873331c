"""Two spirals: a task and a hook to begin one's own with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset, random_split

from hooks import Hook, State
from orchestrator import Task


@dataclass
class Starter(Task):
    """Tells points of one spiral from points of the other. A batch is `(points, labels)`: (B, 2) float32 and (B,)
    int64.

    The fields are the file's `task_args`, and a sweep can vary them.
    """

    width: Annotated[int, Gt(0)] = 64
    """Units of the two hidden layers."""
    noise: Annotated[float, Gt(0)] = 0.1
    """How far points lie from their spiral."""

    def model(self) -> nn.Module:
        """What is trained; (B, 2) to (B, 2) logits."""
        hidden = self.width
        return nn.Sequential(
            nn.Linear(2, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2),
        )

    def data(self) -> Mapping[str, Dataset[Any]]:
        """The datasets of `train` and `val`, and of `test` where there is one; the same on every rank."""
        fixed = torch.Generator().manual_seed(0)
        labels = torch.arange(1000) % 2
        radii = torch.rand(1000, generator=fixed).sqrt() * 3
        angles = 2 * radii + labels * torch.pi
        points = torch.stack([angles.cos(), angles.sin()], 1) * radii[:, None]
        points += torch.randn(1000, 2, generator=fixed) * self.noise
        train, val = random_split(TensorDataset(points, labels), [800, 200], fixed)
        return {"train": train, "val": val}

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        """What is minimized: a scalar, the mean over the batch."""
        return functional.cross_entropy(output, batch[1])

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        """A value for each sample; reports have their mean over all ranks, as `val/accuracy`."""
        return {"accuracy": (output.argmax(1) == batch[1]).float()}


@dataclass
class Confidence(Hook):
    """Records the probability that the model gives to its own answers, a column of the run's stats."""

    temperature: Annotated[float, Gt(0)] = 1.0
    """What logits are divided by."""

    def on_forward(self, state: State) -> None:
        """After the forward pass, in every phase, on every rank."""
        state.record(confidence=(state.output.detach() / self.temperature).softmax(1).amax(1).mean())

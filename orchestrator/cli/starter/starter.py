"""Two spirals: a task and a hook to start from."""

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
class StarterTask(Task):
    """Classify points of two spirals. A batch is `(points, labels)`: (B, 2) float32 and (B,) int64.

    The fields are the experiment's `task_args`; a sweep can vary them.
    """

    width: Annotated[int, Gt(0)] = 64
    """Units of the two hidden layers."""
    noise: Annotated[float, Gt(0)] = 0.4
    """Standard deviation of the points around their spiral."""

    def model(self) -> nn.Module:
        """Return the model, from (B, 2) points to (B, 2) logits."""
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
        """Return the datasets `train` and `val`, the same on every rank; `test` is optional."""
        fixed = torch.Generator().manual_seed(0)
        labels = torch.arange(1000) % 2
        radii = torch.rand(1000, generator=fixed).sqrt() * 3
        angles = 2 * radii + labels * torch.pi
        points = torch.stack([angles.cos(), angles.sin()], 1) * radii[:, None]
        points += torch.randn(1000, 2, generator=fixed) * self.noise
        train, val = random_split(TensorDataset(points, labels), [800, 200], fixed)
        return {"train": train, "val": val}

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        """Return the training loss, the mean over the batch."""
        return functional.cross_entropy(output, batch[1])

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        """Return a value per sample; reports hold the mean across all ranks, as `val/accuracy`."""
        return {"accuracy": (output.argmax(1) == batch[1]).float()}


@dataclass
class Confidence(Hook):
    """Record the mean probability of the predicted class, as a column of the run's stats."""

    temperature: Annotated[float, Gt(0)] = 1.0
    """Divisor of the logits."""

    def on_forward(self, state: State) -> None:
        """Run after the forward pass, in every phase, on every rank."""
        state.record(
            confidence=(state.output.detach() / self.temperature).softmax(1).amax(1).mean()
        )

"""Small tasks in which each key of an experiment has an effect."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments.losses.ibot import IBOTLoss
from orchestrator import Task
from tests.hooks.self_supervised.test_ibot import batches, network
from tests.tasks import Points, PointSet

HERE = "tests.every_key.tasks"
QUIET: dict[str, Any] = {
    "sampler_seed": None,
    "sync_buffers": None,
    "param_scheduler": None,
    "perf_stats": None,
    "memory_stats": None,
    "console": None,
    "checkpoint": None,
}
PLAIN: dict[str, Any] = {
    "name": "run",
    "task": f"{HERE}:Watched",
    "epochs": 2,
    "batch_size": 8,
    "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
}


WATCHED: Counter[str] = Counter()
"""How often samples were fetched, by phase."""


class WatchedSet(PointSet):
    """Counts what is fetched of it."""

    def __getitem__(self, index: int) -> Any:
        WATCHED["fetched"] += 1
        return super().__getitem__(index)


@dataclass
class Watched(Points):
    """Counts what is fetched."""

    def data(self) -> Any:
        return {
            phase: WatchedSet(len(dataset), dataset.noisy, seed)
            for seed, (phase, dataset) in enumerate(super().data().items())
        }


@dataclass
class Images(Points):
    """Points that go through a convolution."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 1, 5)),
            nn.Conv2d(1, 3, (1, 2)),
            nn.ReLU(),
            nn.BatchNorm2d(3),
            nn.Flatten(),
            nn.Linear(12, 3),
        )


@dataclass
class Breaking(Points):
    """Losses that are no numbers, a spike among them, a gradient that is none, or memory that is
    not there."""

    how: str = "nan"
    step: int = 9
    times: int = 1

    def model(self) -> nn.Module:
        self._step = 0
        return super().model()

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        loss = super().loss(output, batch)
        self._step += output.requires_grad
        if not output.requires_grad or not self.step <= self._step < self.step + self.times:
            return loss
        if self.how == "gradient":
            return loss + (output * 0).sum().sqrt()
        if self.how == "memory":
            raise torch.cuda.OutOfMemoryError("no memory, on purpose")
        return loss * {"nan": torch.nan, "spike": 1e3}[self.how]


@dataclass
class Masked(Task):
    """iBOT in miniature."""

    def model(self) -> nn.Module:
        return network()

    def data(self) -> Any:
        samples: list[Any] = []
        for views, _, masks in batches(3):
            samples += zip(*views, *masks, strict=True)
        return {"train": samples}

    def collate(self, samples: list[Any]) -> Any:
        *views, mask_a, mask_b = [torch.stack(parts) for parts in zip(*samples, strict=True)]
        return views, torch.arange(len(samples)), [mask_a, mask_b]

    def batch_size(self, batch: Any) -> int:
        return len(batch[1])

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0], batch[2])

    def loss(self, output: Any, batch: Any) -> Tensor:
        loss: Tensor = IBOTLoss()(output, batch[2])
        return loss


def other_teacher() -> nn.Module:
    torch.manual_seed(6)
    return nn.Linear(5, 3)


def breaking(how: str, **fields: Any) -> dict[str, Any]:
    return {"task": f"{HERE}:Breaking", "task_args": {"how": how, **fields}}


VIEWS = "tests.hooks.self_supervised.views:TwoViews"


@dataclass
class Numbered(Points):
    """A layer whose name is a pattern's in one way and another's in the other."""

    def model(self) -> nn.Module:
        model = super().model()
        model.add_module("0x", nn.Linear(3, 3))
        return model

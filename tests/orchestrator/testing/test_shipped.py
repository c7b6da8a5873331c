"""All hooks that ship keep what hooks promise."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from experiments.losses.ibot import IBOTLoss
from hooks import HOOKS
from orchestrator import Task
from orchestrator.testing import SmallTask, check_hook
from tests.hooks.self_supervised.clouds import Clouds
from tests.hooks.self_supervised.test_distillation import BIG, Distilled
from tests.hooks.self_supervised.test_ibot import Network
from tests.hooks.self_supervised.views import Pairs, TwoViews


@dataclass
class Pair(TwoViews):
    """Two views of a few points."""

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": Pairs(24), "val": Pairs(8)}


class MaskedSet(Dataset[Any]):
    """Three views of patches, and masks of the first two."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        views = [torch.randn(patches, 5, generator=generator) for patches in (7, 7, 3)]
        return views, index, [torch.rand(7, generator=generator) < 0.3 for _ in range(2)]


@dataclass
class Masked(Task):
    """Patches, of which some are hidden."""

    def model(self) -> nn.Module:
        return Network()

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": MaskedSet(24), "val": MaskedSet(8)}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0], batch[2])

    def loss(self, output: Any, batch: Any) -> Tensor:
        loss: Tensor = IBOTLoss()(output, batch[2])
        return loss

    def batch_size(self, batch: Any) -> int:
        return len(batch[1])


FEW = SmallTask(train=8, val=4)

CASES: dict[str, dict[str, Any]] = {
    "early_stopping": {"fields": {"monitor": "val/loss", "mode": "min"}},
    "freeze_parameters": {"fields": {"patterns": ["0.*"]}},
    "time_limit": {"fields": {"limit": 1000.0}},
    "output_mask": {"fields": {"target": 1}},
    "distillation": {"fields": {"teacher": BIG}, "task": Distilled(train=24, val=8)},
    "checkpoint": {"varies": ["names"]},  # it takes over the checkpoint that it is resumed from
    "tensorboard": {"varies": ["newest"]},  # the points of a step, measured times among them
    "export": {"task": FEW},
    "loss_spike": {"fields": {"threshold": 6.0}},
    "byol": {"task": Pair("byol")},
    "dino": {"task": Pair("dino")},
    "moco": {"fields": {"queue_length": 12}, "task": Pair("moco")},
    "ibot": {"task": Masked()},
    "swav": {"fields": {"assigned_views": [0, 1]}, "task": Clouds(24, 8, batch_norm=True)},
    "swav_momentum": {"fields": {"assigned_views": [0, 1]}, "task": Clouds(24, 8, batch_norm=True)},
    "deepcluster": {
        "fields": {"clusters": [3, 2], "assigned_views": [0, 1]},
        "task": Clouds(24, 8, prototypes=0),
    },
    "precise_batch_norm": {"fields": {"num_samples": 10}},
}
"""What a hook needs that takes no defaults, or learns from no labels."""

UNCHECKED = {
    "mlflow": "each attempt begins with the migrations of a database: half a minute; with varies=['run_id'] it passes",
    "wandb": "each attempt starts its own service: a minute; with mode offline and varies=['run_id'] it passes",
}


@pytest.fixture(autouse=True, scope="module")
def freeze_existing_objects() -> None:
    """Going through all that a process of many tests holds takes a second each time that a hook
    collects."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("name", sorted(HOOKS.keys() - UNCHECKED.keys()))
def test_shipped_hook_passes_check_hook(name: str) -> None:
    check_hook(HOOKS[name], **CASES.get(name, {}))

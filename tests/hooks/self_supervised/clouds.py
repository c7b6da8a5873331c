"""A small self-supervised task for tests: points around a few centers, seen through fixed noise."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from experiments.losses.deepcluster import DeepClusterLoss
from experiments.losses.swav import SwAVLoss
from hooks import Hook
from orchestrator import Task
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.tasks import Rows, experiment, numbers


class CloudSet(Dataset[Any]):
    """Views (3 of shape (6,)) of each point, the same whenever it is fetched, and its place."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        centers = 2 * torch.randn(4, 6, generator=torch.Generator().manual_seed(7))
        points = centers[torch.arange(size) % 4] + 0.3 * torch.randn(size, 6, generator=generator)
        self.views = points.unsqueeze(1) + 0.2 * torch.randn(size, 3, 6, generator=generator)

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        return list(self.views[index]), index


class Embedder(nn.Module):
    """Unit-length embeddings (B, 5) of each view, and where there are prototypes their scores (B,
    4)."""

    def __init__(self, prototypes: int, dropout: float, batch_norm: bool) -> None:
        super().__init__()
        norm: nn.Module = nn.BatchNorm1d(8) if batch_norm else nn.Identity()
        self.trunk = nn.Sequential(
            nn.Linear(6, 8), norm, nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 5)
        )
        if prototypes:
            self.prototypes = nn.Linear(5, prototypes, bias=False)

    def forward(self, views: list[Tensor]) -> Any:
        embeddings = [functional.normalize(self.trunk(view), dim=1) for view in views]
        if not hasattr(self, "prototypes"):
            return embeddings
        return embeddings, [self.prototypes(embedding) for embedding in embeddings]


@dataclass
class Clouds(Task):
    """SwAV where there are prototypes, DeepCluster where there are none."""

    train: int = 48
    val: int = 0
    prototypes: int = 4
    dropout: float = 0.0
    batch_norm: bool = False

    def model(self) -> nn.Module:
        return Embedder(self.prototypes, self.dropout, self.batch_norm)

    def data(self) -> Mapping[str, Dataset[Any]]:
        sizes = {"train": self.train, "val": self.val}
        return {
            phase: CloudSet(size, seed) for seed, (phase, size) in enumerate(sizes.items()) if size
        }

    def batch_size(self, batch: Any) -> int:
        return len(batch[1])

    def loss(self, output: Any, batch: Any) -> Tensor:
        return SwAVLoss()(output) if self.prototypes else DeepClusterLoss()(output)


@dataclass
class Trained:
    """What a run has come to."""

    loop: Loop
    weights: dict[str, Any]
    losses: list[float]


def train(
    task: Task,
    hooks: Mapping[str, Hook],
    *,
    root: Path | None = None,
    restore: str | None = None,
    world: World | None = None,
    **fields: Any,
) -> Trained:
    """Runs the real loop; with a root it stores checkpoints there."""
    world = world or World()
    torch.manual_seed(99)
    rows = Rows()
    store = CheckpointStore(Storage(root), is_master=world.is_master) if root else None
    loop = Loop(
        task,
        experiment(**{"epochs": 3, "batch_size": 8, **fields}),
        hooks,
        RunContext(recorder=rows, store=store, world=world),
    )
    if restore:
        loop.restore(restore)
    list(loop.run())
    return Trained(
        loop,
        numbers(loop.state.module),
        [row["loss"] for row in rows.rows if row["phase"] == "train"],
    )

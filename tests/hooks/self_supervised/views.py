"""Views in miniature: a task of two views for each method, and training by hand on given
batches."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from experiments.losses.byol import BYOLLoss
from experiments.losses.dino import DINOLoss
from experiments.losses.ibot import IBOTLoss
from experiments.losses.moco import MoCoLoss
from hooks import Hook, Plan, State
from orchestrator import Task

LOSSES: dict[str, Any] = {
    "moco": MoCoLoss(0.2),
    "byol": BYOLLoss(),
    "dino": DINOLoss(0.1),
    "ibot": IBOTLoss(),
}
Batch = tuple[Any, ...]
"""Views and indices; for iBOT also the masks of the first two views."""


class Network(nn.Module):
    """Views (B, 5) to embeddings (B, 3): an encoder and, above it, a predictor."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(6) if batch_norm else nn.Identity()
        self.encoder = nn.Sequential(
            OrderedDict(
                backbone=nn.Linear(5, 6), norm=norm, head=nn.Sequential(nn.Tanh(), nn.Linear(6, 3))
            )
        )
        self.predictor = nn.Linear(3, 3)

    def forward(self, views: list[Tensor]) -> list[Tensor]:
        return [self.predictor(self.encoder(view)) for view in views]


class Pairs(Dataset[Any]):
    """Points (5,), each in two views of it; noise is drawn anew each time."""

    def __init__(self, size: int) -> None:
        self.points = torch.randn(size, 5, generator=torch.Generator().manual_seed(size))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        return [self.points[index] + 0.1 * torch.randn(5) for _ in range(2)], index


@dataclass
class TwoViews(Task):
    """A method on points, with every kind of state it can have."""

    method: str = "moco"

    def model(self) -> nn.Module:
        return Network(batch_norm=True)

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": Pairs(44), "val": Pairs(12)}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0])

    def loss(self, output: Any, batch: Any) -> Tensor:
        loss: Tensor = LOSSES[self.method](output)
        return loss

    def batch_size(self, batch: Any) -> int:
        return len(batch[1])


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move a teacher towards its student, parameter by parameter, as the originals do."""
    for own, other in zip(teacher.parameters(), student.parameters(), strict=True):
        own.mul_(momentum).add_((1 - momentum) * other)


def pairs(count: int, size: int = 8, seed: int = 1) -> list[Batch]:
    """Batches of two views each."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (list(torch.randn(2, size, 5, generator=generator)), torch.arange(size))
        for _ in range(count)
    ]


def share(batch: Batch, sizes: list[int], rank: int) -> Batch:
    """A rank's part of a batch that all ranks have together."""

    def take(tensor: Tensor) -> Tensor:
        return tensor.split(sizes)[rank]

    return tuple(list(map(take, part)) if isinstance(part, list) else take(part) for part in batch)


class Miniature:
    """A model that is trained on given batches with one method's hook, the events fired as the loop
    does."""

    def __init__(
        self,
        hook: Hook,
        method: str,
        *,
        batch_norm: bool = False,
        network: Callable[[], nn.Module] | None = None,
        rank: int = 0,
        world_size: int = 1,
        epochs: int = 2,
        length: int = 100,
    ) -> None:
        torch.manual_seed(0)
        module = network() if network else Network(batch_norm)
        model: nn.Module = module
        if world_size > 1:
            model = DistributedDataParallel(module, broadcast_buffers=False)
        self.hook = hook
        self.loss = LOSSES[method]
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        self.state = State(
            model=model,
            module=module,
            optimizer=self.optimizer,
            rank=rank,
            world_size=world_size,
            phase="train",
        )
        self.state.max_epochs = epochs
        self.state.phase_length = length
        self.plan = Plan({method: hook})
        self.plan.fire("on_start", self.state)
        self.plan.fire("on_phase_start", self.state)
        self.outputs: list[Any] = []
        self.losses: list[float] = []
        self.rows: list[dict[str, Any]] = []

    def train(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self.state.epoch, self.state.phase_iteration = divmod(
                self.state.iteration, self.state.phase_length
            )
            self.forward(batch).backward()
            self.plan.fire("on_backward", self.state)
            self.optimizer.step()
            self.plan.fire("on_update", self.state)
            self.optimizer.zero_grad()
            self.state.iteration += 1
            self.state.step += 1
            self.rows.append(self.state.row)

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch, its output kept."""
        state = self.state
        state.batch = batch
        state.batch_size = len(batch[1])
        state.row = {}
        training = state.phase == "train"
        with torch.set_grad_enabled(training):
            views, _, *masks = batch
            state.output = (state.model if training else state.module)(views, *masks)
            self.plan.fire("on_forward", state)
            loss: Tensor = self.loss(state.output, *masks)
        self.outputs.append(state.output)
        self.losses.append(loss.item())
        return loss

    def phase(self, name: str) -> None:
        self.state.phase = name
        self.state.module.train(name == "train")
        self.plan.fire("on_phase_start", self.state)


def plain(value: Any) -> Any:
    """Tensors as lists, which compare bit for bit and travel between processes."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value

"""A run of three ranks, which add their gradients in an order that DDP chooses, and its resume."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from tests.ranks import on_ranks
from tests.tasks import Points, experiment, numbers


class OutOfOrder(nn.Module):
    """Uses its layers in another order than it has them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(17, 3)
        self.first = nn.Linear(5, 33)
        self.phase = nn.Parameter(torch.full((33,), 0.5 + 0.5j))
        self.middle = nn.Linear(33, 17)

    def forward(self, points: Tensor) -> Tensor:
        hidden = (self.first(points) * self.phase).abs()
        output: Tensor = self.last(self.middle(hidden).tanh())
        return output


class Sparse(nn.Module):
    """Has a parameter with a sparse gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3, sparse=True)
        self.layer = nn.Linear(5, 3)

    def forward(self, points: Tensor) -> Tensor:
        output: Tensor = self.layer(points) + self.table((points[:, 0] > 0).long())
        return output


@dataclass
class Ordered(Points):
    kind: str = "out of order"

    def model(self) -> nn.Module:
        return Sparse() if self.kind == "sparse" else OutOfOrder()


def _train(rank: int, world_size: int, root: str, kind: str, settings: dict[str, Any]) -> Any:
    def make_loop() -> Loop:
        world = World(rank, world_size, rank)
        store = CheckpointStore(Storage(root), "points", is_master=world.is_master)
        settings_of_loop = experiment(batch_size=2, epochs=2, **settings)
        return Loop(Ordered(kind=kind), settings_of_loop, {}, RunContext(world=world, store=store))

    whole = make_loop()
    for report in whole.run():
        if report.metrics["epoch"] == 0:
            whole.save()
    resumed = make_loop()
    resumed.restore("epoch-0001")
    list(resumed.run())
    return numbers(whole.state.module), numbers(resumed.state.module)


@pytest.mark.parametrize(
    ("kind", "settings", "is_exact"),
    [
        ("out of order", {}, True),
        ("out of order", {"accumulate": 3}, True),
        ("out of order", {"workers": {"ddp": {"find_unused_parameters": True}}}, True),
        ("out of order", {"workers": {"ddp": {"static_graph": True}}}, False),
        ("sparse", {}, False),
    ],
)
def test_three_ranks_resume_with_the_bits_of_a_run_that_did_not_stop(
    tmp_path: Any, kind: str, settings: dict[str, Any], is_exact: bool
) -> None:
    for whole, resumed in on_ranks(_train, 3, str(tmp_path), kind, settings):
        for name, value in whole.items():
            torch.testing.assert_close(torch.tensor(resumed[name]), torch.tensor(value))
        assert resumed == whole or not is_exact

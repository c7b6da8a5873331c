from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_gather  # type: ignore[attr-defined]

from orchestrator.errors import TaskError
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Points, experiment


@dataclass
class Gathered(Points):
    """Its loss compares the features of all ranks, as CLIP's does."""

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        features = torch.cat(all_gather(output))
        return (features @ features.t()).logsumexp(1).mean()


@dataclass
class Summed(Points):
    """Its loss adds a number over the ranks, whatever the sizes of their batches."""

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        total = output.detach().sum()
        dist.all_reduce(total)
        return super().loss(output, batch) + 0 * total


def validate(rank: int, world_size: int, task: Points, batch_size: int) -> Any:
    world = World(rank=rank, world_size=world_size)
    settings = experiment(epochs=1, loader={"eval_batch_size": batch_size})
    try:
        return [
            report.metrics["val/loss"]
            for report in Loop(task, settings, {}, RunContext(world=world)).run()
        ]
    except TaskError as error:
        return str(error)


@pytest.mark.parametrize(
    ("task", "batch_size"),
    [
        (Gathered(val=23), 8),  # last batches of 4 and 3
        (Gathered(val=25), 4),  # 4 batches and 3
        (Summed(val=25), 4),
    ],
)
def test_collective_in_the_loss_of_unequal_batches_is_refused_on_all_ranks(
    task: Points, batch_size: int
) -> None:
    for answer in on_ranks(validate, 2, task, batch_size):
        assert isinstance(answer, str), answer
        assert f"the val data has {task.val} samples for 2 ranks" in answer
        assert "Give it a multiple of 2 samples" in answer


@pytest.mark.parametrize(
    ("task", "batch_size"),
    [
        (Gathered(val=24), 8),
        (Summed(val=23), 8),  # two batches on each rank
        (Points(val=25), 4),
    ],
)
def test_collectives_that_cannot_fail_are_allowed(task: Points, batch_size: int) -> None:
    for answer in on_ranks(validate, 2, task, batch_size):
        assert isinstance(answer[0], float)

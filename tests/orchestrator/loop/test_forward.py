"""What a task's forward pass may do with its model: call it, call parts of it, and look at what it
has."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hooks.training.ema import EMA
from orchestrator.errors import TaskError
from orchestrator.experiment.sections.workers import Ddp, Workers
from orchestrator.loop.loop import Loop
from orchestrator.loop.model.sharded_modules import is_sharded
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Points, Rows, experiment, numbers


class InParts(nn.Module):
    """A body and a head, and what is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.temperature = 2.0

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.body(points)) * self.scale / self.temperature


@dataclass
class OfParts(Points):
    """Calls the model, or its parts one by one, which comes to the same."""

    whole: bool = False
    seen: list[type] = field(default_factory=list)

    def model(self) -> nn.Module:
        return InParts()

    def forward(self, model: Any, batch: Any) -> Tensor:
        self.seen.append(type(model))
        if self.whole:
            return model(batch[0])
        hidden = model.body(batch[0])
        batch.append(hidden)  # what forward leaves in the batch, loss finds there
        return model.head(hidden) * model.scale / model.temperature

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        assert self.whole or batch[-1].shape[1] == 8
        return super().loss(output, batch)


@dataclass
class OfTheBody(OfParts):
    """Leaves out the head, on which the loss does not depend then."""

    def forward(self, model: Any, batch: Any) -> Tensor:
        return model.body(batch[0])[:, :3] * model.scale

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return Points.loss(self, output, batch)


@dataclass
class WithoutHeadLater(OfTheBody):
    """Leaves out the head from the third batch on."""

    def forward(self, model: Any, batch: Any) -> Tensor:
        self.forwards = vars(self).get("forwards", 0) + 1
        return (OfParts if self.forwards < 3 else OfTheBody).forward(self, model, batch)


def run_loop(task: OfParts, world: World | None = None, **fields: Any) -> dict[str, Any]:
    """A run, with averaged weights in validation."""
    world = world or World()
    rows = Rows()
    fields = {
        "batch_size": 8 // world.world_size,
        "workers": Workers(count=world.world_size),
        **fields,
    }
    loop = Loop(
        task, experiment(**fields), {"ema": EMA(decay=0.5)}, RunContext(world=world, recorder=rows)
    )
    reports = [report.metrics for report in loop.run()]
    weights = {} if is_sharded(loop.state.module) else numbers(loop.state.module)
    return {
        "weights": weights,
        "reports": reports,
        "rows": rows.columns("phase", "loss"),
        "types": set(task.seen),
    }


FINDING = (
    Ddp(find_unused_parameters=True),
    Ddp(static_graph=True),
    Ddp(find_unused_parameters=True, gradient_as_bucket_view=True),
)


def _on_two(rank: int, world_size: int) -> dict[str, Any]:
    world = World(rank, world_size, rank)
    found = {}
    for task in (OfTheBody, WithoutHeadLater):
        with pytest.raises(TaskError) as unused:
            run_loop(task(train=48), world)
        found[task.__name__] = str(unused.value)
    return {
        "unused": found,
        "found": [
            run_loop(OfTheBody(train=48), world, workers=Workers(count=2, ddp=options))["weights"]
            for options in FINDING
        ],
        "parts": run_loop(OfParts(train=48), world),
        "whole": run_loop(OfParts(train=48, whole=True), world),
        "accumulated": [
            run_loop(OfParts(train=48, whole=whole), world, accumulate=2)["weights"]
            for whole in (False, True)
        ],
        "sharded": run_loop(
            OfParts(train=48, whole=True), world, workers=Workers(count=2, strategy="fsdp")
        )["reports"],
    }


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return on_ranks(_on_two)


def test_ranks_that_call_submodules_train_as_one_process(two: list[dict[str, Any]]) -> None:
    alone = run_loop(OfParts(train=48))
    for found in two:
        assert found["parts"]["weights"] == two[0]["parts"]["weights"]
        for name, value in alone["weights"].items():
            torch.testing.assert_close(
                torch.tensor(found["parts"]["weights"][name]),
                torch.tensor(value),
                rtol=1e-4,
                atol=1e-6,
            )
        for one, other in zip(alone["reports"], found["parts"]["reports"], strict=True):
            assert other == pytest.approx({**one, "samples": one["samples"] / 2}, abs=1e-5)
        assert found["parts"]["types"] == found["whole"]["types"] == {InParts}


def test_calling_submodules_equals_calling_the_model_bit_for_bit(two: list[dict[str, Any]]) -> None:
    for found in two:
        parts, whole = found["parts"], found["whole"]
        assert (parts["weights"], parts["reports"], parts["rows"]) == (
            whole["weights"],
            whole["reports"],
            whole["rows"],
        )
        assert found["accumulated"][0] == found["accumulated"][1]


def test_sharded_ranks_train_as_replicas_do(two: list[dict[str, Any]]) -> None:
    for found in two:
        for one, other in zip(found["sharded"], found["whole"]["reports"], strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def test_unused_parameters_are_named_in_the_first_iteration_that_leaves_them_out(
    two: list[dict[str, Any]],
) -> None:
    assert len(run_loop(OfTheBody(train=48))["reports"]) == 2
    for found in two:
        for text in found["unused"].values():
            assert (
                "does not depend on 2 of the model's 5 parameters (head.weight, head.bias)" in text
            )
            assert "workers: {ddp: {find_unused_parameters: true}}" in text


def test_find_unused_parameters_trains_the_rest_as_one_process(two: list[dict[str, Any]]) -> None:
    alone = run_loop(OfTheBody(train=48))["weights"]
    for found in two:
        for weights in found["found"]:
            assert weights == two[0]["found"][0]
            for name, value in alone.items():
                torch.testing.assert_close(
                    torch.tensor(weights[name]), torch.tensor(value), rtol=1e-4, atol=1e-6
                )

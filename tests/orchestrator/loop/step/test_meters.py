"""A meter has the value over all ranks, or is refused."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from orchestrator.errors import TaskError
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.step.meters import check_ranks_agree
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import Points, experiment


class Spread:
    """The mean of squares of the outputs, over the samples that this rank has seen or over those of
    all."""

    def __init__(self, gives: str, over_ranks: bool) -> None:
        self.gives = gives
        self.over_ranks = over_ranks
        self.sums = torch.zeros(2, dtype=torch.float64)

    def to(self, device: torch.device) -> "Spread":
        return self

    def update(self, output: Tensor, target: Tensor) -> None:
        self.sums += torch.tensor([output.double().square().sum(), float(output.numel())])

    def compute(self) -> Any:
        sums = self.sums.clone()
        if self.over_ranks and dist.is_initialized():
            dist.all_reduce(sums)
        value = sums[0] / sums[1]
        return {
            "number": value,
            "vector": torch.stack([value, value]),
            "mapping": {"of": value},
            "matrix": value.expand(2, 2),
        }[self.gives]


@dataclass
class Measured(Points):
    gives: str = "number"
    over_ranks: bool = True

    def meters(self) -> dict[str, Any]:
        return {"spread": Spread(self.gives, self.over_ranks)}


GIVES = {
    "number": "val/spread",
    "vector": "val/spread/0",
    "mapping": "val/spread/of",
    "matrix": "val/spread",
}


def trained(rank: int, world_size: int, gives: str, over_ranks: bool) -> Any:
    """The last value of the meter, or why it is refused."""
    loop = Loop(
        Measured(gives=gives, over_ranks=over_ranks),
        experiment(epochs=1, batch_size=8 // world_size),
        {},
        RunContext(world=World(rank=rank, world_size=world_size)),
    )
    try:
        (report,) = loop.run()
    except TaskError as error:
        return str(error)
    return {name: value for name, value in report.metrics.items() if "spread" in name}


def on_two(rank: int, world_size: int) -> dict[str, Any]:
    """For each kind of value what a meter of all ranks gives, and one of each rank."""
    return {
        gives: [trained(rank, world_size, gives, over_ranks) for over_ranks in (True, False)]
        for gives in GIVES
    }


def test_meter_must_combine_the_samples_of_all_ranks() -> None:
    first, second = on_ranks(on_two)
    assert first == second
    for gives, name in GIVES.items():
        combined, message = first[gives]
        alone = trained(0, 1, gives, False)
        assert bool(alone) == (gives != "matrix"), "a matrix is no metric"
        assert combined == {name: pytest.approx(value, rel=1e-5) for name, value in alone.items()}
        assert f"the meter 'spread' differs between ranks: {name} is " in message
        assert " on rank 0 and " in message
        assert "test_meters.py" in message


@pytest.mark.parametrize(
    "values", [(1.0, 1.0 + 1e-9), (math.nan, math.nan), (math.inf, math.inf), (0.0, 0.0)]
)
def test_values_that_differ_by_rounding_are_equal(values: tuple[float, ...]) -> None:
    check_ranks_agree(Points(), "val", "m", [{"m": value} for value in values])
    check_ranks_agree(Points(), "val", "m", [{"m": np.full((2, 3), value)} for value in values])


@pytest.mark.parametrize(
    "values", [(1.0, 1.001), (math.nan, 1.0), (math.inf, -math.inf), (1.0, 1.0, 2.0), (0.0, 1e-3)]
)
def test_values_that_differ_more_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(TaskError, match=f"val/m is {values[0]} on rank 0"):
        check_ranks_agree(Points(), "val", "m", [{"m": value} for value in values])


def test_value_that_one_rank_lacks_is_refused() -> None:
    with pytest.raises(TaskError, match=r"val/m/b is 1\.0 on rank 0 and None on rank 1"):
        check_ranks_agree(Points(), "val", "m", [{"m/a": 1.0, "m/b": 1.0}, {"m/a": 1.0}])

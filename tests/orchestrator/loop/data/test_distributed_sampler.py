from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from orchestrator.errors import ConfigError
from orchestrator.loop.data.phases import build_data
from orchestrator.loop.world import World
from tests.tasks import Points, experiment


@dataclass
class Ordered(Points):
    """Points in the order of a DistributedSampler with these arguments."""

    arguments: tuple[int, ...] = ()

    def sampler(self, dataset: Any, phase: str) -> Any:
        return DistributedSampler(dataset, *self.arguments) if phase == "train" else None


@dataclass
class OwnBatches(Ordered):
    """The same sampler, in the loader's own batch sampler."""

    def sampler(self, dataset: Any, phase: str) -> Any:
        return None

    def loader(self, dataset: Any, batches: Any, phase: str, options: dict[str, Any]) -> Any:
        order: DistributedSampler[Any] = DistributedSampler(dataset, *self.arguments)
        batches = BatchSampler(order, 8, drop_last=False)
        return DataLoader(dataset, batch_sampler=batches, **options)


@dataclass
class OwnLoader(Ordered):
    """The same sampler, in a loader instead of a dataset."""

    def data(self) -> Any:
        points: Dataset[Any] = super().data()["train"]
        order: DistributedSampler[Any] = DistributedSampler(points, *self.arguments)
        return {"train": StatefulDataLoader(points, 8, sampler=order)}


def of_two(rank: int) -> Any:
    world = World()
    return SimpleNamespace(
        rank=rank, world_size=2, place="", device=world.device, gather=lambda value: [value] * 2
    )


@pytest.mark.parametrize("arguments", [(2, 0), (1, 0), ()], ids=str)
@pytest.mark.parametrize("world", [World(), of_two(0)], ids=["one rank", "two ranks"])
@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            Ordered,
            r"Ordered.sampler\(\) for train .*divides the samples among ranks.*RandomSampler",
        ),
        (
            OwnBatches,
            r"OwnBatches.loader\(\) for train .*divides the samples among ranks.*use `batches`",
        ),
    ],
)
def test_sampler_of_a_rank_is_refused_where_the_loop_divides_the_samples(
    task: type[Ordered], message: str, world: Any, arguments: tuple[int, ...]
) -> None:
    """Without arguments, torch cannot even make it outside of a process group."""
    with pytest.raises(ConfigError, match=message):
        build_data(task(arguments=arguments), experiment(), world)


def test_other_error_in_the_sampler_method_is_the_users_own() -> None:
    class Failing(Points):
        def sampler(self, dataset: Any, phase: str) -> Any:
            raise ValueError("no labels")

    with pytest.raises(ValueError, match="no labels"):
        build_data(Failing(), experiment(), World())


def test_loader_of_the_data_has_the_sampler_of_its_rank() -> None:
    data = build_data(OwnLoader(arguments=(2, 1)), experiment(batch_size=32), of_two(1))
    assert data.train.length() == 4  # 52 samples: 26 per rank, in batches of 8
    for world in (World(), of_two(0)):
        with pytest.raises(
            ConfigError,
            match=r"OwnLoader.data\(\) for train has a DistributedSampler of rank 1 of 2",
        ):
            build_data(OwnLoader(arguments=(2, 1)), experiment(batch_size=32), world)

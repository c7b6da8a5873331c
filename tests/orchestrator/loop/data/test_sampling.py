import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler, Sampler, WeightedRandomSampler

from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.errors import ConfigError, TaskError
from orchestrator.loop.data.phases import build_data
from orchestrator.loop.loop import Loop
from orchestrator.loop.world import World
from tests.tasks import Points, Seen, experiment, numbers

WEIGHTS = [float(place % 4) for place in range(52)]


class Drawn(Sampler[int]):
    """Some samples, from numpy's generator and in whatever kind of number."""

    def __iter__(self) -> Iterator[Any]:
        return iter(np.random.permutation(40)[:30])


class Growing(Sampler[int]):
    """More samples in each epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(20 + self.epoch))


class Counting(Sampler[int]):
    """Goes on where it ended."""

    begin = 0

    def __iter__(self) -> Iterator[int]:
        self.begin += 1
        return iter(range(self.begin, 20))


class Endless(Sampler[int]):
    """Permutations without end, from the global generator; as MMEngine's, its length is the
    dataset's."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.size).tolist()

    def __len__(self) -> int:
        return self.size


class EndlessOnce(Sampler[int]):
    """Without a length and with one iterator for all epochs and its own seed, drawn as it is
    made."""

    def __init__(self, size: int) -> None:
        seed = int(np.random.randint(2**31))
        self.generator = None
        self.indices = self.draw(size, torch.Generator().manual_seed(seed))

    def draw(self, size: int, generator: torch.Generator) -> Iterator[int]:
        while True:
            yield from torch.randperm(size, generator=generator).tolist()

    def __iter__(self) -> Iterator[int]:
        return self.indices


@dataclass
class Sampled(Points):
    """Points in the order of one of these samplers."""

    how: str = ""

    def sampler(self, dataset: Any, phase: str) -> Any:
        if phase == "val":
            return (
                [*range(5)]
                if self.how == "val"
                else Endless(23)
                if self.how == "endless val"
                else None
            )
        return {
            "endless": Endless(len(dataset)),
            "endless once": EndlessOnce(len(dataset)),
            "endless weights": itertools.cycle([1.0]),
            "endless text": itertools.cycle("a"),
            "weights": WEIGHTS,
            "tensor": torch.tensor(WEIGHTS),
            "iterator": map(float, WEIGHTS),
            "drawn": Drawn(),
            "own generator": RandomSampler(dataset, generator=torch.Generator()),
            "growing": Growing(),
            "counting": Counting(),
            "few weights": WEIGHTS[:7],
            "negative": [-1.0, *WEIGHTS[1:]],
            "zeros": [0.0] * 52,
            "text": "uniform",
            "mapping": dict(enumerate(WEIGHTS)),
            "batches": torch.utils.data.BatchSampler(range(52), 4, drop_last=False),
            "outside": torch.utils.data.SubsetRandomSampler([3, 52]),
            "none": torch.utils.data.SubsetRandomSampler([]),
        }.get(self.how)


def test_weighted_run_equals_torch_bit_for_bit() -> None:
    seen = Seen()
    loop = Loop(
        Sampled(how="weights", val=0),
        experiment(seed=3),
        {"sampler_seed": DistSamplerSeed(), "seen": seen},
    )
    list(loop.run())
    torch.manual_seed(3)
    model = Points().model()
    dataset = Points().data()["train"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    order = []
    for epoch in range(2):
        sampler = WeightedRandomSampler(
            WEIGHTS, 52, generator=torch.Generator().manual_seed(3 + epoch)
        )
        for points, labels, places in DataLoader(dataset, 8, sampler=sampler):
            order.append(places.tolist())
            functional.cross_entropy(model(points), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert seen.indices == order
    assert numbers(loop.state.module) == numbers(model)


def shares(how: str, world_size: int, epoch: int = 0, offset: int = 0) -> list[int]:
    """What all ranks together see of an epoch, in order."""
    found = []
    for rank in range(world_size):
        data: Any = build_data(Sampled(how=how), experiment(seed=3), of(rank, world_size)).train
        data.sampler.set_epoch(epoch)
        data.sampler.offset = offset
        found.append(list(data.sampler))
    return list(chain.from_iterable(zip(*found, strict=True)))


def of(rank: int, world_size: int) -> Any:
    return SimpleNamespace(
        rank=rank,
        world_size=world_size,
        device=torch.device("cpu"),
        gather=lambda value: [value] * world_size,
    )


@pytest.mark.parametrize("how", ["weights", "tensor", "drawn", "own generator"])
def test_order_is_shared_by_any_number_of_ranks_from_any_place(how: str) -> None:
    torch.manual_seed(5)
    whole = [shares(how, 1, epoch) for epoch in range(2)]
    assert whole[0] != whole[1]
    torch.manual_seed(6)
    before = torch.get_rng_state()
    assert shares(how, 2, 1) == whole[1]
    assert whole[1][:10] + shares(how, 2, 1, offset=10) == whole[1]
    assert torch.equal(before, torch.get_rng_state())
    assert len(whole[0]) == (30 if how == "drawn" else 52)


def test_an_iterator_of_weights_is_read_once() -> None:
    assert shares("iterator", 1, 0) == shares("weights", 1, 0)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "few weights",
            r"Sampled.sampler\(\) for train gives weights of shape \(7,\), and the dataset has 52 samples",
        ),
        ("negative", r"gives weights that torch.multinomial refuses: .*< 0"),
        ("zeros", "torch.multinomial refuses: .*sum of probabilities <= 0"),
        ("mapping", "gives a dict; expected a Sampler, a weight for each sample, or None"),
        ("text", "gives a str; expected a Sampler, a weight for each sample, or None"),
        ("batches", "must give indices of samples, which the loop puts into batches: .*list"),
        ("outside", "gives sample 52, and the dataset has 52, from 0"),
        ("none", "gives no sample"),
        (
            "counting",
            "gives another order on a second call .*random numbers from the global generators",
        ),
        ("endless weights", r"gives weights of shape \(53,\), and the dataset has 52 samples"),
        ("endless text", "gives a cycle; expected a Sampler"),
        (
            "endless",
            "for train has not ended after 520 samples of 52; training needs `steps` .* define its __len__",
        ),
        (
            "endless val",
            "for val has not ended after 230 samples of 23; an evaluation needs an end",
        ),
        (
            "val",
            r"Sampled.sampler\(\) for val gives weights of shape \(5,\), and the dataset has 23 samples",
        ),
    ],
)
def test_invalid_order_is_refused_before_training(how: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_data(Sampled(how=how), experiment(), World())


def test_order_that_differs_between_ranks_is_refused() -> None:
    world = of(1, 2)
    world.gather = lambda value: [value, value + 1]
    with pytest.raises(
        ConfigError, match=r"gives rank 1 another order than rank 0.*the loop splits it among ranks"
    ):
        build_data(Sampled(how="weights"), experiment(), world)


# Samplers without an end


@pytest.mark.parametrize("how", ["endless", "endless once"])
def test_sampler_without_an_end_trains_for_a_number_of_steps(how: str) -> None:
    """An epoch is a permutation of the dataset, 7 batches of 8 samples at most."""
    seen = Seen()
    loop = Loop(
        Sampled(how=how, val=0),
        experiment(steps=16),
        {"sampler_seed": DistSamplerSeed(), "seen": seen},
    )
    list(loop.run())
    assert (loop.state.step, loop.state.epoch) == (16, 2)
    epochs = [list(itertools.chain(*seen.indices[begin : begin + 7])) for begin in (0, 7)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(52))] * 2
    assert epochs[0] != epochs[1]


def endless_shares(
    how: str, world_size: int, epochs: list[int], offset: int = 0
) -> list[list[int]]:
    """What all ranks together see of these epochs, in order."""
    samplers = []
    for rank in range(world_size):
        data: Any = build_data(
            Sampled(how=how), experiment(steps=9, seed=3), of(rank, world_size)
        ).train
        samplers.append(data.sampler)
    seen = []
    for epoch in epochs:
        for sampler in samplers:
            sampler.set_epoch(epoch)
            sampler.offset = offset
        seen.append(list(chain.from_iterable(zip(*samplers, strict=True))))
    return seen


@pytest.mark.parametrize("how", ["endless", "endless once"])
def test_order_without_an_end_continues_on_any_number_of_ranks_from_any_place(how: str) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    whole = endless_shares(how, 1, [0, 1, 2, 3])
    assert len({tuple(epoch) for epoch in whole}) == 4
    torch.manual_seed(6)
    np.random.seed(6)
    before = torch.get_rng_state()
    assert endless_shares(how, 2, [3, 1, 1, 2]) == [whole[3], whole[1], whole[1], whole[2]]
    assert whole[2][:10] + endless_shares(how, 2, [2], offset=10)[0] == whole[2]
    assert torch.equal(before, torch.get_rng_state())


def test_own_loader_with_a_batch_sampler_without_an_end_is_refused() -> None:
    class Batches(Points):
        def loader(self, dataset: Any, batches: Any, phase: str, options: dict[str, Any]) -> Any:
            return DataLoader(dataset, batch_sampler=iter([[0]] * 9), **options)  # type: ignore[arg-type]

    with pytest.raises(
        ConfigError, match=r"Batches.loader\(\) gives a loader of train whose length is unknown"
    ):
        build_data(Batches(), experiment(steps=9), World())


# Data that grow


class GrowingRows(list[Any]):
    def set_epoch(self, epoch: int) -> None:
        self.extend([self[0]] * epoch)


def test_dataset_or_sampler_whose_length_changes_ends_the_run() -> None:
    hooks = {"sampler_seed": DistSamplerSeed()}
    with pytest.raises(
        TaskError, match="the sampler returns 21 samples in epoch 2, but 20 in the first"
    ):
        list(Loop(Sampled(how="growing", val=0), experiment(), hooks).run())

    class Grown(Points):
        def data(self) -> Any:
            return {"train": GrowingRows(super().data()["train"])}  # type: ignore[arg-type]

    with pytest.raises(
        TaskError, match="the train dataset has 53 samples in epoch 2, but it had 52 at the start"
    ):
        list(Loop(Grown(val=0), experiment(), hooks).run())

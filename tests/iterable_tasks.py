"""IterablePoints for tests: the points of tests/tasks.py without an index."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset

from tests.tasks import Points, PointSet


class Shuffled(IterableDataset[Any]):
    """Shuffles as it begins, with the global generator, and keeps no place."""

    def __init__(self, points: PointSet) -> None:
        self.points = points

    def __iter__(self) -> Iterator[Any]:
        order = list(range(len(self.points)))
        random.shuffle(order)
        for place in order:
            yield self.points[place]


class Placed(IterableDataset[Any]):
    """Knows its length, has another order in each epoch, and its iterator keeps its place."""

    def __init__(self, points: PointSet) -> None:
        self.points, self.epoch = points, 0
        self.read: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Any]:
        return PlacedIterator(self)


class PlacedIterator:
    """Counts what is read of its dataset."""

    def __init__(self, dataset: Placed) -> None:
        self.dataset, self.place = dataset, 0
        self.order = torch.randperm(
            len(dataset), generator=torch.Generator().manual_seed(dataset.epoch)
        ).tolist()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.place == len(self.order):
            raise StopIteration
        self.place += 1
        self.dataset.read.append(self.order[self.place - 1])
        return self.dataset.points[self.order[self.place - 1]]

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


KINDS: dict[str, Any] = {
    "shuffled": Shuffled,
    "placed": Placed,
    "iterator": iter,
    "list": list,
    "nothing": lambda points: object(),
}


@dataclass
class IterablePoints(Points):
    """Points whose phases are iterable datasets of a kind, except those named in `map_style`."""

    kind: str = "shuffled"
    map_style: str = ""

    def data(self) -> Any:
        return {
            phase: points if phase in self.map_style else KINDS[self.kind](points)
            for phase, points in super().data().items()
        }

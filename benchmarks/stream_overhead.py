"""Cost of an iteration on a stream, compared with a raw PyTorch loop over the same
StatefulDataLoader.

Both train the perceptron of loop_overhead on the same digits, given one by one by an iterable
dataset that keeps its place, in batches of 32. A turn is one pass. The claim: with the default
hooks an iteration takes at most 1.05 times the raw one.

    python -m benchmarks.stream_overhead [rounds]
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.loop_overhead import BATCH, LR, hookyard, print_beside_raw
from benchmarks.perceptron import Perceptron, make_data, make_model
from benchmarks.timing import Pause

data_once = cache(make_data)


class Digits(IterableDataset[Any]):
    """The digits one after another."""

    def __len__(self) -> int:
        return len(data_once())

    def __iter__(self) -> Iterator[Any]:
        return Place()


class Place(Iterator[Any]):
    """Position in the digits."""

    def __init__(self) -> None:
        self.images, self.labels = data_once().tensors
        self.place = 0

    def __next__(self) -> Any:
        if self.place == len(self.labels):
            raise StopIteration
        self.place += 1
        return self.images[self.place - 1], self.labels[self.place - 1]

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


@dataclass
class Streamed(Perceptron):
    """The same as a task."""

    def data(self) -> Mapping[str, Any]:
        return {"train": Digits()}


def raw(rounds: int, pause: Pause) -> None:
    model, loader = make_model(), StatefulDataLoader(Digits(), BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(rounds):
        for images, labels in loader:
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        pause()


def main(rounds: int = 9) -> None:
    torch.set_num_threads(1)
    iterations = -(-len(data_once()) // BATCH)
    hooked = partial(hookyard, data_once(), rounds + 1, task="benchmarks.stream_overhead:Streamed")
    print_beside_raw(
        "One training iteration on a stream", partial(raw, rounds + 1), hooked, rounds, iterations
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

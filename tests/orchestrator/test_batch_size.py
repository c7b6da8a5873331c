from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import default_collate

from orchestrator.errors import TaskError
from orchestrator.loop.loop import Loop
from orchestrator.task import Task
from tests.tasks import Points, experiment

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Example:
    points: dict[str, Tensor]
    name: str = ""


class Collated(Points):
    def collate(self, samples: Any) -> Any:
        return samples


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


def images(count: int) -> list[Tensor]:
    return [ones(3, 8 + number, 8) for number in range(count)]


def targets(count: int, first: int = 1) -> list[dict[str, Tensor]]:
    return [
        {"boxes": ones(first + number, 4), "labels": ones(first + number)}
        for number in range(count)
    ]


# What default_collate makes of five samples


SAMPLES = {
    "pair of tensors": (ones(2), ones(1)),
    "mapping first": ({"a": ones(2), "b": ones(2)}, ones(1)),
    "pair first": ((ones(2), ones(2)), ones(1)),
    "pair of pairs": ((ones(2), ones(2)), (ones(1), ones(1), ones(1))),
    "mapping in a mapping": {"inputs": {"a": ones(2), "b": ones(2), "c": ones(2)}, "y": ones(1)},
    "list in a mapping": {"views": [ones(3, 2, 2), ones(3, 1, 1)]},
    "named tuple": Pair({"a": ones(2)}, ones(1)),
    "text": {"text": "a few words", "words": ("a", "few"), "y": 1},
    "text alone": "a few words",
    "numbers and arrays": (np.ones((2, 2)), 1, 2.0),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_default_batch_has_as_many_samples_as_were_collated(kind: str) -> None:
    assert Task.batch_size(Points(), default_collate([SAMPLES[kind]] * 5)) == 5


# Other batches


BATCHES: dict[str, tuple[Callable[[], Any], int]] = {
    "scalar first": (lambda: (torch.tensor(1.0), ones(4, 2)), 4),
    "dataclass": (lambda: Example({"a": ones(4, 2)}), 4),
    "mapping whose first tensor tells": (
        lambda: {"inputs": {"x": ones(4, 2)}, "offsets": ones(5)},
        4,
    ),
    "packed sequence": (lambda: pack_sequence([ones(5, 2), ones(3, 2), ones(1, 2)]), 3),
    "packed sequence and labels": (lambda: (pack_sequence([ones(5, 2), ones(3, 2)]), ones(2)), 2),
    "nested tensor": (
        lambda: (
            torch.nested.nested_tensor([ones(2, 3), ones(4, 3)], layout=torch.jagged),
            ones(2),
        ),
        2,
    ),
    "strided nested tensor": (
        lambda: (torch.nested.nested_tensor([ones(2, 3), ones(4, 3)]), ones(2)),
        2,
    ),
    "sparse tensor": (lambda: (ones(4, 3).to_sparse(), ones(4)), 4),
    "array": (lambda: (np.ones((4, 2)), np.ones(4)), 4),
    "graphs of PyG": (lambda: SimpleNamespace(num_graphs=4, x=ones(30, 2)), 4),
    "graphs of PyG and labels": (
        lambda: (SimpleNamespace(num_graphs=4, x=ones(30, 2)), ones(4)),
        4,
    ),
    "views beside labels": (lambda: ([ones(4, 3, 8, 8), ones(4, 3, 4, 4)], ones(4)), 4),
    "inputs beside targets": (lambda: ({"x": ones(4, 2), "mask": ones(4)}, {"y": ones(4)}), 4),
    "detection": (lambda: (tuple(images(2)), tuple(targets(2))), 2),
    "detection with as many boxes as channels": (lambda: (images(3), targets(3, first=3)), 3),
    "detection with as many boxes in each image as channels": (
        lambda: (images(2), [{"boxes": ones(3, 4), "labels": ones(3)}] * 2),
        2,
    ),
    "one image with as many boxes as channels": (lambda: (images(1), targets(1, first=3)), 1),
    "detection with lists in a mapping": (
        lambda: {"images": images(2), "boxes": [ones(5, 4), ones(1, 4)]},
        2,
    ),
    "images of several sizes and labels": (lambda: (images(2), ones(2)), 2),
    "list of mappings": (lambda: [{"image": ones(3, 8, 8), "boxes": ones(5, 4)}] * 2, 2),
    "list of two samples with two parts": (lambda: [(ones(3, 8, 8), ones(5, 4))] * 2, 2),
    "list of texts": (lambda: ["some words", "others"], 2),
    "labels as numbers": (lambda: (["some words", "others"], [3, 4]), 2),
}


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_batch_of_the_tasks_own_collate_function_is_counted_by_samples(kind: str) -> None:
    make, samples = BATCHES[kind]
    assert Task.batch_size(Collated(), make()) == samples


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        pytest.param((1, 2.0), "no tensor with a dimension", id="numbers"),
        pytest.param(
            (torch.tensor(1.0), torch.tensor(1.0)), "no tensor with a dimension", id="scalars"
        ),
        pytest.param((), "no tensor with a dimension", id="nothing"),
        pytest.param({"graph": object()}, "no tensor with a dimension", id="unknown object"),
        pytest.param(
            ([ones(3, 8, 8)] * 2,),
            "dimensions of 3, and its parts have lengths of 2",
            id="equal images",
        ),
        pytest.param(
            ([ones(4, 2), ones(4, 2)], [ones(4), ones(4)]),
            "dimensions of 4, and its .* of 2",
            id="pairs of columns",
        ),
        pytest.param(
            [(ones(3, 8, 8), ones(5, 4))] * 4,
            "dimensions of 3, 5, and its .* of 4, 2",
            id="list of tuples",
        ),
        pytest.param(
            (images(2), ones(5)), "dimensions of 3, 5, and its .* of 2, 5", id="nothing agrees"
        ),
        pytest.param(
            {"size": [8, 8, 3], "images": ones(2, 8, 8, 3)},
            "dimensions of 2, and its .* of 3, 2",
            id="size of the images before them",
        ),
        pytest.param(
            (["one", "two"], ones(37)),
            "dimensions of 37, and its .* of 2, 37",
            id="texts before their packed tokens",
        ),
    ],
)
def test_batch_whose_samples_are_not_known_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(TaskError, match=f"{message}.*define batch_size"):
        Task.batch_size(Collated(), batch)


@dataclass
class Nested(Points):
    """Each sample is ({a, b}, index); the loss is the mean index."""

    train: int = 10
    val: int = 10

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def data(self) -> Any:
        rows = [({"a": torch.tensor([float(index)]), "b": ones(1)}, index) for index in range(10)]
        return {"train": rows, "val": rows}

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]["b"]) * 0 + batch[0]["a"]

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return output.mean()

    def metrics(self, output: Tensor, batch: Any) -> Any:
        return {}


def test_means_of_nested_batches_weigh_each_sample_once() -> None:
    [report] = Loop(Nested(), experiment(epochs=1, batch_size=4), {}).run()
    assert report.metrics["val/loss"] == report.metrics["train/loss"] == sum(range(10)) / 10
    assert report.metrics["samples"] == 10

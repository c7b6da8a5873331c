from collections import defaultdict, namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from orchestrator.loop.step.transfer import StreamTransfer, to_device

Pair = namedtuple("Pair", "left right")


def test_nested_batches_are_moved() -> None:
    device = torch.device("meta")
    tensor = torch.zeros(2)
    batch = {"a": tensor, "b": [tensor, "text"], "c": (tensor, 3), "d": Pair(tensor, None)}
    moved = to_device(batch, device)
    assert (
        moved["a"].device
        == moved["b"][0].device
        == moved["c"][0].device
        == moved["d"].left.device
        == device
    )
    assert moved["b"][1] == "text"
    assert moved["c"][1] == 3
    assert isinstance(moved["c"], tuple)
    assert isinstance(moved["d"], Pair)
    assert moved["d"].right is None


class Rows(list[Tensor]):
    """A list of its own."""


@dataclass
class Padded:
    """A batch of sequences; the lengths stay where `pack_padded_sequence` needs them."""

    tokens: Tensor
    lengths: Tensor

    def to(self, device: torch.device) -> "Padded":
        return Padded(self.tokens.to(device), self.lengths)


@dataclass(frozen=True)
class Pictures:
    pixels: Tensor
    names: list[str]


def test_containers_keep_their_type_and_own_to_methods_are_used() -> None:
    device = torch.device("meta")
    tensor = torch.zeros(2)
    by_name = defaultdict(list, a=tensor)
    moved = to_device(
        (Rows([tensor]), by_name, Pictures(tensor, ["x"]), Padded(tensor, tensor)), device
    )
    rows, mapping, pictures, padded = moved
    assert isinstance(rows, Rows)
    assert (type(mapping), mapping["none"]) == (defaultdict, [])
    assert (
        rows[0].device
        == mapping["a"].device
        == pictures.pixels.device
        == padded.tokens.device
        == device
    )
    assert (pictures.names, padded.lengths) == (["x"], tensor)
    assert by_name["a"] is tensor


# StreamTransfer beside the GPU's work


class Stream:
    """Stands in for a GPU's stream: keeps what was asked of it."""

    def __init__(self, name: str, asked: list[tuple[str, ...]]) -> None:
        self.name = name
        self.asked = asked

    def wait_stream(self, other: "Stream") -> None:
        self.asked.append((self.name, "waits for", other.name))

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.asked.append((self.name, "begins"))
        yield
        self.asked.append((self.name, "ends"))


def test_batch_is_copied_on_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    copying = Stream("copying", asked)
    working = Stream("working", asked)
    device = torch.device("meta")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: copying)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream.entered())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: working)
    monkeypatch.setattr(
        torch.Tensor,
        "record_stream",
        lambda tensor, stream: asked.append((stream.name, "keeps", str(tuple(tensor.shape)))),
    )
    copies = StreamTransfer(device)
    moved = copies(
        {
            "points": torch.zeros(3, 2),
            "labels": [torch.zeros(3), "text"],
            "rows": Rows([torch.zeros(4)]),
        }
    )
    assert moved["points"].device == moved["labels"][0].device == device
    assert moved["labels"][1] == "text"
    assert asked == [
        ("copying", "begins"),
        ("copying", "ends"),
        ("working", "waits for", "copying"),
        ("working", "keeps", "(3, 2)"),
        ("working", "keeps", "(3,)"),
        ("working", "keeps", "(4,)"),
    ]
    del asked[:]
    # Which memory this one takes is its own business, so it is not copied beside the work.
    assert copies([Padded(torch.zeros(3), torch.zeros(3))])[0].tokens.device == device
    assert asked == []

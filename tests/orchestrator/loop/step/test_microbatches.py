from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from orchestrator.loop.step.microbatches import is_out_of_memory, microbatches_of, rows_of

Pair = namedtuple("Pair", "points names")


@dataclass(frozen=True)
class Views:
    first: Tensor
    scale: float


def told(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: told(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(*map(told, value)) if hasattr(value, "_fields") else type(value)(map(told, value))
    return (told(value.first), value.scale) if isinstance(value, Views) else value


def test_samples_are_dealt_out_and_what_they_share_is_in_each_piece() -> None:
    three = torch.arange(3)
    batch = {
        "views": [three, three * 10],
        "pair": Pair(three, ["a", "b", "c"]),
        "boxes": [{"box": torch.ones(number)} for number in (1, 2, 4)],
        "more": Views(three, 0.5),
        "shared": (torch.tensor(7.0), "text", None, 3, ("x", "y")),
    }
    shared = (7.0, "text", None, 3, ("x", "y"))
    assert [told(piece) for piece in microbatches_of(batch, 2)] == [
        {
            "views": [[0], [0]],
            "pair": Pair([0], ["a"]),
            "boxes": [{"box": [1.0]}],
            "more": ([0], 0.5),
            "shared": shared,
        },
        {
            "views": [[1, 2], [10, 20]],
            "pair": Pair([1, 2], ["b", "c"]),
            "boxes": [{"box": [1.0, 1.0]}, {"box": [1.0] * 4}],
            "more": ([1, 2], 0.5),
            "shared": shared,
        },
    ]
    assert [told(piece) for piece in microbatches_of((three, three), 8)] == [([0], [0]), ([1], [1]), ([2], [2])]
    assert rows_of({"name": "x", "points": torch.zeros(5, 2)}) == 5
    assert rows_of("text") == 1


def test_what_cannot_be_cut_is_said() -> None:
    with pytest.raises(ValueError, match=r"a tensor of shape \(4,\) beside others of 3 rows"):
        microbatches_of((torch.zeros(3), torch.zeros(4)), 2)
    with pytest.raises(ValueError, match="a PackedSequence, whose samples are not known"):
        microbatches_of((torch.zeros(3), pack_sequence([torch.zeros(2)])), 2)


def test_memory_that_is_not_there_is_known_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**50)
    assert is_out_of_memory(refused.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))

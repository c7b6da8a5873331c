"""Trees of tensors: copies, and the first difference between two of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from hooks.parts import sharded_tensors as shards
from orchestrator.checkpoint import placeholders
from orchestrator.stats.aggregate.quantities import get_unit


def copy_tree(tree: Any) -> Any:
    """Copy nested containers. A sharded tensor becomes a copy of this rank's shard."""
    tensors = {id(tensor): shards.local(tensor).detach().clone() for tensor in placeholders.tensors_in(tree)}
    return deepcopy(tree, tensors)


def find_difference(actual: Any, expected: Any, path: str = "", varies: Collection[str] = ()) -> str:
    """Return the path of the first difference of two trees, bit for bit, with both values; empty if they are equal.

    Skips the names in `varies`, and names with a unit of time, speed or memory.
    """
    if type(actual) is not type(expected):
        return f"{path} is a {type(actual).__name__}, not a {type(expected).__name__}"
    if isinstance(expected, dict):
        for key in (key for key in {**expected, **actual} if key not in varies and not _is_measured(str(key))):
            if key not in actual or key not in expected:
                return f"{path}[{key!r}] is {'missing' if key not in actual else 'there, and should not be'}"
            if text := find_difference(actual[key], expected[key], f"{path}[{key!r}]", varies):
                return text
        return ""
    if isinstance(expected, (list, tuple, deque)):
        if len(actual) != len(expected):
            return f"{path} has {len(actual)} entries, not {len(expected)}"
        pairs = enumerate(zip(actual, expected, strict=True))
        return next(filter(None, (find_difference(*pair, f"{path}[{index}]", varies) for index, pair in pairs)), "")
    if isinstance(expected, Tensor):
        is_same = actual.dtype == expected.dtype and actual.shape == expected.shape
        is_equal = is_same and torch.equal(actual.nan_to_num(), expected.nan_to_num())
        return "" if is_equal else f"{path} is {_format_tensor(actual)}, not {_format_tensor(expected)}"
    is_equal = actual is expected or actual == expected or (actual != actual and expected != expected)
    return "" if is_equal else f"{path} is {actual!r}, not {expected!r}"


def _format_tensor(tensor: Tensor) -> str:
    values = tensor.flatten()[:4].tolist()
    return f"{tensor.dtype} {tuple(tensor.shape)} {values}{'...' if tensor.numel() > 4 else ''}"


def _is_measured(name: str) -> bool:
    return bool(get_unit(name)) or name.rpartition("_")[2] == "seconds"

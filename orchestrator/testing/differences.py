"""Copies of nested values, and the first difference of two of them."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from hooks.distributed import sharded_tensors as shards
from hooks.errors import add_article
from orchestrator.disk.checkpoints import placeholders
from orchestrator.units import get_unit


def copy_tree(tree: Any) -> Any:
    """Copy nested containers. A sharded tensor becomes a copy of this rank's shard."""
    tensors = {
        id(tensor): shards.get_local(tensor).detach().clone()
        for tensor in placeholders.tensors_in(tree)
    }
    return deepcopy(tree, tensors)


def find_difference(
    actual: Any, expected: Any, path: str = "", varies: Collection[str] = ()
) -> str:
    """Return the path of the first difference of two trees, bit for bit, with both values.

    Empty if the trees are equal. Skips the names in `varies`, and names with a unit of time, speed
    or memory.
    """
    if type(actual) is not type(expected):
        return f"{path} is {add_article(type(actual).__name__)}, not {add_article(type(expected).__name__)}"
    if isinstance(expected, dict):
        return _find_mapping_difference(actual, expected, path, varies)
    if isinstance(expected, (list, tuple, deque)):
        return _find_sequence_difference(actual, expected, path, varies)
    if isinstance(expected, Tensor):
        return _find_tensor_difference(actual, expected, path)

    are_nan = actual != actual and expected != expected
    if actual is expected or actual == expected or are_nan:
        return ""
    return f"{path} is {actual!r}, not {expected!r}"


def _find_mapping_difference(
    actual: Mapping[Any, Any], expected: Mapping[Any, Any], path: str, varies: Collection[str]
) -> str:
    for key in {**expected, **actual}:
        if key in varies or _is_measured(str(key)):
            continue
        if key not in actual:
            return f"{path}[{key!r}] is missing"
        if key not in expected:
            return f"{path}[{key!r}] is there, and should not be"
        if text := find_difference(actual[key], expected[key], f"{path}[{key!r}]", varies):
            return text
    return ""


def _is_measured(name: str) -> bool:
    return bool(get_unit(name)) or name == "seconds" or name.endswith("_seconds")


def _find_sequence_difference(
    actual: Sequence[Any], expected: Sequence[Any], path: str, varies: Collection[str]
) -> str:
    if len(actual) != len(expected):
        return f"{path} has the length {len(actual)}, not {len(expected)}"
    for index, (own, other) in enumerate(zip(actual, expected, strict=True)):
        if text := find_difference(own, other, f"{path}[{index}]", varies):
            return text
    return ""


def _find_tensor_difference(actual: Tensor, expected: Tensor, path: str) -> str:
    is_comparable = actual.dtype == expected.dtype and actual.shape == expected.shape
    if is_comparable and torch.equal(actual.nan_to_num(), expected.nan_to_num()):
        return ""
    return f"{path} is {_format_tensor(actual)}, not {_format_tensor(expected)}"


def _format_tensor(tensor: Tensor) -> str:
    text = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.flatten()[:4].tolist()}"
    return f"{text}..." if tensor.numel() > 4 else text

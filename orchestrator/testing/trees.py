"""What a hook is checked by: copies of trees of tensors, and where two of them differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from hooks.parts import sharded_tensors as shards
from orchestrator.checkpoint import placeholders
from orchestrator.stats.aggregate.quantities import unit


def copied(tree: Any) -> Any:
    """Return a copy of nested containers; of a sharded tensor, of this rank's shard."""
    tensors = {id(tensor): shards.local(tensor).detach().clone() for tensor in placeholders.tensors_in(tree)}
    return deepcopy(tree, tensors)


def difference(found: Any, expected: Any, place: str = "", varies: Collection[str] = ()) -> str:
    """The first place where two trees differ by a bit, with both values; empty where none does. What is measured in
    seconds, bytes and the like, by its name, may differ, and so may what `varies`."""
    if type(found) is not type(expected):
        return f"{place} is a {type(found).__name__}, not a {type(expected).__name__}"
    if isinstance(expected, dict):
        for key in (key for key in {**expected, **found} if key not in varies and not _is_measured(str(key))):
            if key not in found or key not in expected:
                return f"{place}[{key!r}] is {'missing' if key not in found else 'there, and should not be'}"
            if told := difference(found[key], expected[key], f"{place}[{key!r}]", varies):
                return told
        return ""
    if isinstance(expected, (list, tuple, deque)):
        if len(found) != len(expected):
            return f"{place} has {len(found)} entries, not {len(expected)}"
        told_all = (
            difference(one, other, f"{place}[{index}]", varies)
            for index, (one, other) in enumerate(zip(found, expected, strict=True))
        )
        return next(filter(None, told_all), "")
    if isinstance(expected, Tensor):
        alike = found.dtype == expected.dtype and found.shape == expected.shape
        return (
            ""
            if alike and torch.equal(found.nan_to_num(), expected.nan_to_num())
            else f"{place} is {_shown(found)}, not {_shown(expected)}"
        )
    same = found is expected or found == expected or (found != found and expected != expected)
    return "" if same else f"{place} is {found!r}, not {expected!r}"


def _shown(tensor: Tensor) -> str:
    values = tensor.flatten()[:4].tolist()
    return f"{tensor.dtype} {tuple(tensor.shape)} {values}{'...' if tensor.numel() > 4 else ''}"


def _is_measured(name: str) -> bool:
    """Whether a name says that its value differs from run to run: a time, a speed, or what the machine has in use."""
    return bool(unit(name)) or name.rpartition("_")[2] == "seconds"

"""The parts of a loader or a dataset that may depend on the epoch."""

from inspect import ismethod
from typing import Any

import numpy
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from hooks.private_torch import get_version

_NAMES = (
    "sampler",
    "batch_sampler",
    "dataset",
    "transform",
    "target_transform",
    "transforms",
    "pipeline",
    "collate_fn",
)
"""Attributes of torch's loaders and datasets, of torchvision's transforms and of MMEngine's
datasets that hold another part."""
_CONTAINERS = ("datasets", "transforms", "pipeline")
"""Attributes that are containers of parts, of torch's ConcatDataset and StackDataset, torchvision's
Compose, and datasets with a list of transforms."""
_MAX_ENTRIES = 64
"""Longer containers and arrays hold data, such as the samples of a dataset."""


def find_parts(*wholes: Any) -> list[Any]:
    """Return loaders or datasets and the parts in them: samplers, wrapped datasets, transforms and
    collators."""
    parts: dict[int, Any] = {}
    waiting = list(wholes)
    while waiting:
        part = waiting.pop(0)
        if ismethod(part):  # such as the `collate` of a task
            part = part.__self__
        if part is None or id(part) in parts:
            continue
        parts[id(part)] = part
        waiting += [getattr(part, name, None) for name in _NAMES]
        # A loader of the user's may keep its batches under any name.
        attributes = getattr(part, "__dict__", {}).values()
        waiting += [value for value in attributes if isinstance(value, Sampler)]
        if isinstance(part, Dataset) and not hasattr(part, "set_epoch"):
            # A wrapper may call the datasets in it by any name. One with its own set_epoch decides
            # what number they get, as the share of an iterable dataset does.
            for value in vars(part).values():
                waiting += _list_datasets(value)
        for name in _CONTAINERS:
            inner = getattr(part, name, None)
            if isinstance(inner, list | tuple):
                waiting += inner
            elif isinstance(inner, dict):
                waiting += inner.values()
    return list(parts.values())


def _list_datasets(value: Any) -> list[Any]:
    """Return the datasets that a value is or contains."""
    entries = [value]
    if isinstance(value, dict):
        entries = list(value.values())
    elif isinstance(value, list | tuple):
        entries = list(value)
    # A list whose first entry is none may have millions of samples.
    if not entries or not isinstance(entries[0], Dataset):
        return []
    return [entry for entry in entries if isinstance(entry, Dataset)]


def find_parts_with_epoch(*wholes: Any) -> list[Any]:
    """Return the parts of loaders or datasets that have `set_epoch`."""
    return [part for part in find_parts(*wholes) if callable(getattr(part, "set_epoch", None))]


def describe_attributes(parts: list[Any]) -> list[Any]:
    """Return what tells whether an attribute of a part has been replaced, or changed in place:
    simple values, the contents of small containers and arrays, and the identity of others."""
    return [(id(part), _describe_values(getattr(part, "__dict__", {}))) for part in parts]


def _describe_values(attributes: Any) -> dict[str, Any]:
    return {name: _describe(value) for name, value in attributes.items()}


def _describe(value: Any, depth: int = 3) -> Any:
    if isinstance(value, int | float | str | None):
        return value
    if isinstance(value, Tensor):
        return id(value), get_version(value)
    if isinstance(value, numpy.ndarray) and value.size <= _MAX_ENTRIES:
        return id(value), value.tobytes()
    if depth == 0 or not isinstance(value, dict | list | tuple):
        return id(value)
    if len(value) > _MAX_ENTRIES:
        return id(value), len(value)
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [(name, _describe(part, depth - 1)) for name, part in inner]

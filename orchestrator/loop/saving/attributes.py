"""Values in the attributes of a user's objects: numbers, arrays, tensors and random generators."""

import logging
import random
from collections import deque
from collections.abc import Collection, Iterator
from functools import cache, partial
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from hooks.state import State

GENERATORS = (random.Random, numpy.random.RandomState, numpy.random.Generator, torch.Generator)
_MAX_DEPTH = 6
_MAX_ENTRIES = 64
"""Longer containers hold data, such as the samples of a dataset."""
_OPAQUE = (
    type,
    ModuleType,
    str,
    bytes,
    bool,
    logging.Logger,
    State,
    LRScheduler,
    DataLoader,
)
"""Types into which `list_values` does not look."""
_OWN_PACKAGES = ("orchestrator.", "hooks.")
_OF_MODULES = vars(nn.Module()).keys()


def list_values(root: object, name: str, ignored: Collection[int] = ()) -> dict[str, Any]:
    """Return values in an object's attributes by path, such as `task.noise.rng`.

    They are numbers, arrays, tensors and generators. Looks into containers, modules, functions and
    other objects, and skips objects whose id is in `ignored`, except `root` itself.
    """
    return dict(_walk(root, name, {*ignored} - {id(root)}, _MAX_DEPTH))


def _walk(value: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    # Equal numbers may be one object, so an id does not tell whether one was seen.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value
        return
    if isinstance(value, _OPAQUE) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (Tensor, numpy.ndarray, *GENERATORS)):
        yield path, value
        return
    is_root = depth == _MAX_DEPTH
    is_own = type(value).__module__.startswith(_OWN_PACKAGES)
    if is_root or (depth > 0 and not is_own):
        for name, inner in _list_parts(value, path):
            yield from _walk(inner, name, seen, depth - 1)


def _list_parts(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the attributes or entries of an object with their paths."""
    if isinstance(value, nn.Module):
        return _list_module_parts(value, path)
    if isinstance(value, Optimizer):
        return _list_optimizer_parts(value, path)
    if isinstance(value, (dict, list, tuple, deque)) and len(value) > _MAX_ENTRIES:
        return []
    # Another kind of mapping may load its values.
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", inner) for key, inner in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return [(f"{path}[{index}]", inner) for index, inner in enumerate(value)]
    attributes = {**_list_captured(value), **_list_slots(value), **getattr(value, "__dict__", {})}
    return [
        (f"{path}.{name}", inner) for name, inner in attributes.items() if not name.startswith("__")
    ]


def _list_captured(function: Any) -> dict[str, Any]:
    """Return what a function, a method or a `partial` was made with."""
    if isinstance(function, partial):
        return {"func": function.func, "args": function.args, "keywords": function.keywords}
    if isinstance(function, (MethodType, BuiltinFunctionType)):
        return {"self": function.__self__}
    is_of_torch = str(getattr(function, "__module__", None)).startswith("torch")
    if not isinstance(function, FunctionType) or is_of_torch:
        return {}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != CellType()}


def _list_slots(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that are in the slots of its classes."""
    names = [
        name
        for base in type(value).__mro__
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    ]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _list_module_parts(module: nn.Module, path: str) -> list[tuple[str, Any]]:
    """Return the tensors and other attributes of a module and its submodules."""
    parts: list[tuple[str, Any]] = []
    for place, part in module.named_modules():
        own = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        own += [item for item in vars(part).items() if item[0] not in _OF_MODULES]
        parts += [(_join(_join(path, place), name), value) for name, value in own]
    return parts


@cache
def _list_attributes_of_optimizers() -> frozenset[str]:
    """Return the attributes that every optimizer has. The first optimizer imports torch's compiler,
    which a driver does without."""
    scheduled = {"_step_count", "_opt_called"}
    return frozenset(vars(SGD([nn.Parameter(torch.empty(0))]))) | scheduled


def _list_optimizer_parts(optimizer: Optimizer, path: str) -> list[tuple[str, Any]]:
    states = [
        (f"{path}.state[{index}]", state) for index, state in enumerate(optimizer.state.values())
    ]
    common = _list_attributes_of_optimizers()
    own = [
        (f"{path}.{name}", value) for name, value in vars(optimizer).items() if name not in common
    ]
    return [*states, *own]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if name else path


def read_generator(generator: Any) -> str:
    """Return the state of a random generator as text, to compare it."""
    if isinstance(generator, torch.Generator):
        return str(generator.get_state().numpy().tobytes())
    if isinstance(generator, random.Random):
        return str(generator.getstate())
    if isinstance(generator, numpy.random.RandomState):
        parts = generator.get_state(legacy=True)
        return str([part.tobytes() if hasattr(part, "tobytes") else part for part in parts])
    return str(generator.bit_generator.state)

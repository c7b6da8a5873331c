"""Digests of the values that training depends on, by path, to compare two trainings."""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy
import torch
from torch import Tensor

from hooks import Hook, State
from hooks.distributed import sharded_tensors as shards
from hooks.private_torch import tree_leaves
from orchestrator.loop.saving.attributes import GENERATORS, list_values, read_generator
from orchestrator.randomness import random_state
from orchestrator.task import Task

_LARGE_BYTES = 2**20
"""Size from which an array of a dataset is taken for its samples."""


Kind = Literal["task", "data", "hook", "optimizer", "model", "module"]
"""What holds a value: an object of the training, or a module of the user's code."""


@dataclass(frozen=True)
class Value:
    """A value that training may depend on."""

    kind: Kind
    digest: str
    is_generator: bool


def digest_state(state: State, task: Task, hooks: Mapping[str, Hook]) -> dict[str, Value]:
    """Return the digests of all values that training may depend on, by path."""
    dataset = getattr(state.loaders["train"], "dataset", None)
    values: dict[str, Value] = {}
    if dataset is not None:
        values |= _digest("data", _list_data_values(dataset))
    values |= _digest("module", _list_module_values(task, dataset))
    for path, optimizer in _list_optimizers(state):
        values |= _digest("optimizer", list_values(optimizer, path, {id(state)}))

    model_parts = [state.model, *state.module.modules(), *state.module.parameters()]
    known = {id(part) for part in (state, *state.optimizers.values(), *model_parts)}
    values |= _digest("task", list_values(task, "task", known))
    for name, hook in hooks.items():
        is_ours = type(hook).__module__.startswith("hooks.")
        if not hook.observes and not is_ours:
            values |= _digest("hook", list_values(hook, f"hooks.{name}", known))
    return values | _digest("model", list_values(state.module, "model"))


def _digest(kind: Kind, values: Mapping[str, Any]) -> dict[str, Value]:
    return {
        path: Value(kind, digest([value]), isinstance(value, GENERATORS))
        for path, value in values.items()
    }


def _list_data_values(dataset: Any) -> dict[str, Any]:
    """Return the values of the training dataset by path, without its samples."""
    root = f"the train data: {type(dataset).__name__}"
    return {
        path: value
        for path, value in list_values(dataset, root).items()
        if getattr(value, "nbytes", 0) < _LARGE_BYTES
    }


def _list_module_values(task: Task, dataset: Any) -> dict[str, Any]:
    """Return the numbers and generators of the modules of the task and the dataset, as
    `module:name`."""
    modules = {type(task).__module__}
    if not type(dataset).__module__.startswith(("torch.", "builtins")):
        modules.add(type(dataset).__module__)

    values = {}
    for module in sorted(modules):
        for name, value in vars(sys.modules[module]).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number or isinstance(value, GENERATORS):
                values[f"{module}:{name}"] = value
    return values


def _list_optimizers(state: State) -> list[tuple[str, torch.optim.Optimizer]]:
    """Return the optimizers with their paths."""
    return [
        (f"optimizer.{name}" if name else "optimizer", optimizer)
        for name, optimizer in state.optimizers.items()
    ]


def digest_end(state: State) -> dict[str, str]:
    """Return the digests of weights, buffers, optimizers and random states, by path."""
    tensors = [*state.module.named_parameters(), *state.module.named_buffers()]
    values: dict[str, Any] = {f"model.{name}": tensor for name, tensor in tensors}
    for path, optimizer in _list_optimizers(state):
        values |= list_values(optimizer, path)
    for name, numbers in random_state().items():
        values[f"the random numbers of {name}"] = numbers
    return {name: digest(tree_leaves(value)) for name, value in values.items()}


def digest(values: Iterable[Any]) -> str:
    sha256 = hashlib.sha256()
    for value in values:
        sha256.update(_to_bytes(value))
    return sha256.hexdigest()


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, GENERATORS):
        return read_generator(value).encode()
    if isinstance(value, Tensor):
        return _read_tensor(shards.get_local(value).detach())
    if isinstance(value, numpy.ndarray):
        content = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
        return f"{value.dtype}{value.shape}".encode() + content

    # The text of another object may be its address, or leave out most of its numbers.
    is_object = not isinstance(value, int | float | complex | str | bytes | None)
    if is_object and (parts := list_values(value, type(value).__qualname__)):
        return b"".join(path.encode() + _to_bytes(part) for path, part in parts.items())
    text = repr(value)
    return b"" if hex(id(value)) in text else text.encode()


def _read_tensor(tensor: Tensor) -> bytes:
    """Return the numbers of a tensor, which may be sparse or nested, with its dtype and shape."""
    if tensor.is_nested:
        return b"".join(map(_read_tensor, tensor.unbind()))
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    raw = tensor.cpu().contiguous().reshape(-1)
    numbers = raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""
    return f"{tensor.dtype}{tuple(tensor.shape)}".encode() + numbers

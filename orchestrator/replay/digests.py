"""Digests of the values that training depends on, by path, to compare two trainings."""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch
from torch import Tensor

from hooks.distributed import sharded_tensors as shards
from hooks.private_torch import tree_leaves
from orchestrator.loop.loop import Loop
from orchestrator.loop.saving.attributes import GENERATORS, list_values, read_generator
from orchestrator.randomness import random_state

_LARGE_BYTES = 2**20
"""Size from which an array of a dataset is taken for its samples."""


def digest_state(loop: Loop) -> dict[str, str]:
    """Return the digests of all values that training may depend on, by path."""
    state = loop.state
    known = {id(state), id(loop)}
    values = dict(list_data_values(loop))
    for name, optimizer in state.optimizers.items():
        values |= list_values(optimizer, ".".join(filter(None, ["optimizer", name])), known)
    known |= {id(optimizer) for optimizer in state.optimizers.values()}
    parts = [state.model, *state.module.modules(), *state.module.parameters()]
    known |= {id(part) for part in parts}
    values |= list_values(loop.task, "task", known)
    for name, hook in loop.training.plan.hooks.items():
        is_ours = type(hook).__module__.startswith("hooks.")
        if not hook.observes and not is_ours:
            values |= list_values(hook, f"hooks.{name}", known)
    values |= list_values(state.module, "model")
    return {path: digest([value]) for path, value in values.items()}


def list_data_values(loop: Loop) -> Iterator[tuple[str, Any]]:
    """Yield values of the training dataset, and generators of the modules of dataset and task, with
    their paths."""
    dataset = getattr(loop.training.data.train.loader, "dataset", None)
    modules = {type(loop.task).__module__}
    if dataset is not None:
        modules.add(type(dataset).__module__)
        root = f"the train data: {type(dataset).__name__}"
        for path, value in list_values(dataset, root).items():
            if getattr(value, "nbytes", 0) < _LARGE_BYTES:
                yield path, value
    for name in sorted(module for module in modules if not module.startswith("torch.")):
        for key, value in vars(sys.modules[name]).items():
            if isinstance(value, (int, float, *GENERATORS)) and not isinstance(value, bool):
                yield f"{name}.{key}", value


def digest_end(loop: Loop) -> dict[str, str]:
    """Return the digests of weights, buffers, optimizers and random states, by path."""
    state = loop.state
    tensors = [*state.module.named_parameters(), *state.module.named_buffers()]
    values = {f"model.{name}": tensor for name, tensor in tensors}
    for name, optimizer in state.optimizers.items():
        values |= list_values(optimizer, ".".join(filter(None, ["optimizer", name])))
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

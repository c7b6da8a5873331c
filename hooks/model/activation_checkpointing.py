"""Activation checkpointing: parts of a model recompute their activations in the backward pass."""

import random
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

M = TypeVar("M", bound=nn.Module)


def keep_no_activations(part: nn.Module) -> None:
    """Make a part recompute its activations in the backward pass, by torch's non-reentrant
    checkpoint.

    Object, names and numbers stay the same: random draws repeat, and buffers such as BatchNorm's
    change once.
    """
    cls: Any = type(part)
    part.__class__ = _make_checkpointed_class(cls)


def keep_activations(module: M) -> M:
    """Undo `keep_no_activations` for all parts of a module; return it."""
    for part in module.modules():
        part.__class__ = getattr(type(part), "keeps_activations_as", type(part))
    return module


@cache
def _make_checkpointed_class(cls: Any) -> Any:
    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        run = partial(cls.forward, self, **named)
        if not torch.is_grad_enabled():
            return run(*inputs)
        if torch.compiler.is_compiling():
            # The compiler changes buffers only once.
            return checkpoint(run, *inputs, use_reentrant=False)
        return checkpoint(
            run, *inputs, use_reentrant=False, context_fn=partial(_make_contexts, self)
        )

    attributes = {
        "forward": forward,
        "keeps_activations_as": cls,
        "__module__": cls.__module__,
    }
    return type(cls)(cls.__name__, (cls,), attributes)


def _make_contexts(
    part: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass and of its recomputation."""
    return nullcontext(), _RestoredState(part)


class _RestoredState(AbstractContextManager[None]):
    """Snapshot of a module's buffers, and of the RNG states that torch's checkpoint ignores."""

    def __init__(self, part: nn.Module) -> None:
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []
        for owner in part.modules():
            for name, buffer in owner.named_buffers(recurse=False):
                self._buffers.append((owner, name, buffer.clone()))
        self._rng_states = _get_rng_states()

    def __enter__(self) -> None:
        self._current_rng_states = _get_rng_states()
        self._current_buffers = []
        for owner, name, before in self._buffers:
            self._current_buffers.append((owner, name, getattr(owner, name)))
            setattr(owner, name, before.clone())
        _set_rng_states(self._rng_states)

    def __exit__(self, *error: object) -> None:
        for owner, name, buffer in self._current_buffers:
            setattr(owner, name, buffer)
        _set_rng_states(self._current_rng_states)


def _get_rng_states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_rng_states(states: tuple[Any, Any]) -> None:
    python_state, numpy_state = states
    random.setstate(python_state)
    np.random.set_state(numpy_state)

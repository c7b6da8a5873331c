"""Use of the model during training without affecting training."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from hooks.model.buffers import copy_expanded_buffers
from hooks.model.layers import run_uncompiled
from hooks.state import State


def get_first_batch(state: State) -> Any:
    """Return the first of this rank's training batches; raises ValueError if there is none."""
    for batch in state.fresh_batches("train"):
        return batch
    raise ValueError("there is no training batch to take as an example")


@contextmanager
def evaluating(state: State) -> Iterator[None]:
    """Put `state.module` into eval mode, as in `borrowing`."""
    with borrowing(state):
        state.module.eval()
        yield


@contextmanager
def borrowing(state: State) -> Iterator[None]:
    """Run `state.module` without gradients, and uncompiled: compiled code calls no module hooks,
    and torch neither traces nor counts it.

    On exit, even after an error, restore the modes of its modules, its buffers and the random
    states.
    """
    copy_expanded_buffers(state.module)
    modes = []
    buffers = []
    for module in state.module.modules():
        modes.append((module, module.training))
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            buffers.append((module, name, buffer, buffer.clone()))
    python_state = random.getstate()
    numpy_state = numpy.random.get_state()
    cuda = [state.device] if state.device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(cuda), run_uncompiled():
            yield
    finally:
        for module, training in modes:
            module.training = training
        for module, name, buffer, before in buffers:
            buffer.data.copy_(before)
            setattr(module, name, buffer)
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)

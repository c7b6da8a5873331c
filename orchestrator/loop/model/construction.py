"""Building a task's model, also on torch's meta device. Runs in workers."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain
from typing import Any

import torch
from torch import nn

from hooks.distributed import collectives
from hooks.model.buffers import copy_expanded_buffers
from hooks.parameter_names import join_names
from orchestrator.errors import TaskError
from orchestrator.loop.task_errors import require_type
from orchestrator.loop.world import World
from orchestrator.randomness import seed_all
from orchestrator.task import Task

INITIALIZERS = ("reset_parameters", "init_weights", "_reset_parameters")
"""Methods that initialize a module's tensors; torch's attention has the last one."""


def build_model(task: Task, on_meta: bool) -> nn.Module:
    """Build the task's model. Raises TaskError if `on_meta` and a part of it has no method to
    initialize it."""
    with torch.device("meta") if on_meta else nullcontext():
        module = require_type(task.model, task.model(), nn.Module, "the model, a torch.nn.Module")
    if on_meta:
        _check_initializers(module)
    copy_expanded_buffers(module)
    return module


def _check_initializers(module: nn.Module) -> None:
    missing = []
    for name, part in module.named_modules():
        has_tensors = any(True for _ in chain(part.parameters(False), part.buffers(False)))
        if has_tensors and not _find_initializer(part):
            missing.append(f"'{name}' ({type(part).__name__})")
    if missing:
        names = join_names(missing, 4)
        raise TaskError(f"workers.meta_device: parts of the model need reset_parameters(): {names}")


def initialize_shards(module: nn.Module, seed: int, world: World) -> None:
    """Allocate and initialize this rank's shards of a model from the meta device; collective."""
    module.to_empty(device=world.device)
    seed_all(seed + world.rank)
    # A model's own method comes after those of its parts.
    for part in reversed([*module.modules()]):
        initialize = _find_initializer(part)
        if initialize is not None:
            initialize()
    collectives.broadcast([*module.buffers()])


def _find_initializer(part: nn.Module) -> Callable[[], Any] | None:
    for name in INITIALIZERS:
        if hasattr(part, name):
            initialize: Callable[[], Any] = getattr(part, name)
            return initialize
    return None

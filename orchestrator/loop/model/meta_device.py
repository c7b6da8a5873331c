"""Models built on torch's meta device, which get memory only for each rank's shards. Runs in workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from hooks.parameter_names import listed
from hooks.parts import coalesced_collectives as coalesced
from orchestrator.errors import TaskError
from orchestrator.loop.step.task_errors import check_type
from orchestrator.loop.world import World
from orchestrator.randomness import seed_all
from orchestrator.task import Task

INITIALIZERS = ("reset_parameters", "init_weights", "_reset_parameters")
"""Methods that initialize a module's tensors; torch's attention has the last one."""


def build_model(task: Task, on_meta: bool) -> nn.Module:
    """Build the task's model. Raises TaskError if `on_meta` and a part of it has no method to initialize it."""
    with torch.device("meta") if on_meta else nullcontext():
        module = check_type(task.model, task.model(), nn.Module, "the model, a torch.nn.Module")
    own_tensors = {name: [*part.parameters(False), *part.buffers(False)] for name, part in module.named_modules()}
    parts = [
        name for name, tensors in own_tensors.items() if tensors and not _find_initializer(module.get_submodule(name))
    ]
    if on_meta and parts:
        names = listed([f"'{name}' ({type(module.get_submodule(name)).__name__})" for name in parts], 4)
        raise TaskError(
            f"workers.meta_device: {len(parts)} parts of the model have parameters or buffers and no"
            f" reset_parameters(): {names}. Write that method, which sets their values, or remove workers.meta_device"
        )
    return module


def initialize_shards(module: nn.Module, seed: int, world: World) -> None:
    """Allocate and initialize this rank's shards of a model from the meta device; collective."""
    module.to_empty(device=world.device)
    seed_all(seed + world.rank)
    for part in reversed([*module.modules()]):  # a model's own method comes after those of its parts
        if initialize := _find_initializer(part):
            initialize()
    coalesced.broadcast([*module.buffers()])


def _find_initializer(part: nn.Module) -> Callable[[], Any] | None:
    return next((getattr(part, name) for name in INITIALIZERS if hasattr(part, name)), None)

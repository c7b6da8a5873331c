"""Wrapping a model for data-parallel training with DDP or FSDP. Runs in workers."""

from collections.abc import Callable, Collection
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hooks.distributed import collectives
from hooks.model.layers import RunningNorm
from orchestrator.errors import ConfigError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.model.model_settings import get_compile_mode
from orchestrator.loop.world import World
from orchestrator.task import Task, has_turns

# The hook sync_buffers averages buffers once per phase; DDP would copy them in each forward pass. The
# option had a different name before torch 2.13.
_HAS_NEW_NAME = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if _HAS_NEW_NAME else "broadcast_buffers"


def wrap_model(module: nn.Module, task: Task, experiment: Experiment, world: World) -> nn.Module:
    """Return the model on this rank's device, wrapped for data-parallel training."""
    is_trained = any(parameter.requires_grad for parameter in module.parameters())
    if world.world_size == 1 or not is_trained:
        return module.to(world.device)
    if experiment.workers.strategy == "fsdp":
        return _shard_units(module, task, experiment, world)

    module = module.to(world.device)
    if has_turns(type(task)) or experiment.accumulate == "auto":
        # Without DDP: it needs gradients of all parameters, but a turn computes only some. And it
        # communicates during the backward pass, in which a rank may run out of memory.
        collectives.broadcast([*module.parameters(), *module.buffers()])
        return module
    devices = [world.device] if world.device.type == "cuda" else None
    options = {_SYNC_BUFFERS: False, **experiment.workers.ddp.model_dump()}
    return DistributedDataParallel(WithinOneCall(module), device_ids=devices, **options)


def _shard_units(module: nn.Module, task: Task, experiment: Experiment, world: World) -> nn.Module:
    units = {*task.fsdp_units(module)}
    if experiment.compile and not units:
        raise ConfigError.at(
            "compile",
            "has no effect: it compiles FSDP units, and fsdp_units(model) returns none",
        )
    if experiment.compile:
        for unit in units:
            # Not the calls that gather and release its parameters.
            unit.forward = torch.compile(unit.forward, mode=get_compile_mode(experiment))
    return shard(module, units, world, experiment.precision)


class WithinOneCall(nn.Module):
    """Wrapper inside DDP that calls the model, or a function that may call its submodules one by
    one.

    DDP prepares the backward pass in its forward call. A submodule called outside it would train on
    each rank alone.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        named = [*module.named_parameters()]
        self.trained = [name for name, parameter in named if parameter.requires_grad]
        """Parameters whose gradients DDP exchanges: those that are trained at the start."""
        self.frozen = {name: parameter for name, parameter in named if not parameter.requires_grad}

    def forward(
        self, *inputs: Any, run: Callable[[nn.Module], Any] | None = None, **named: Any
    ) -> Any:
        return run(self.module) if run else self.module(*inputs, **named)


def forward_pass(
    task: Task, model: nn.Module, module: nn.Module
) -> Callable[[nn.Module, Any], Any]:
    """Return the task's forward pass, which always gets the task's own `module`, even inside
    `model`."""
    if model is module:
        return task.forward

    def forward(called: nn.Module, batch: Any) -> Any:
        if called is model:
            return model(run=lambda own: task.forward(own, batch))
        return task.forward(called, batch)

    return forward


def shard(
    module: nn.Module, units: Collection[nn.Module], world: World, precision: str
) -> nn.Module:
    """Return the module with parameters sharded along the first dimension, as DTensors.

    A unit's parameters are gathered together before it, and released after it, in the backward pass
    too; so is the rest of the module. With bf16 they are gathered and used in bf16; shards,
    optimizer and gradient sums are fp32. Layers with running statistics stay fp32. Buffers are not
    sharded.
    """
    # These imports take a second, and only a sharded model needs them.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(world.device.type, (world.world_size,))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = half if precision == "bf16" else MixedPrecisionPolicy()
    # From the inside out, so an outer call skips parameters that are already sharded. Parameters
    # are released after each call, even of the root, because a hook may change shards between two
    # calls.
    for part in reversed([*module.modules()]):
        if part is module or not any(True for _ in part.parameters()):
            continue
        if precision == "bf16" and isinstance(part, RunningNorm):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
        elif part in units:
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    return module

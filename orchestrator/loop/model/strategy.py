"""The strategy by which the ranks of a run share one model. Worker process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from copy import copy
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hooks.parameter_names import listed
from hooks.parts import coalesced_collectives as coalesced
from hooks.parts import sharded_tensors as shards
from hooks.parts.norm_layers import RunningNorm
from hooks.private_torch import gradients_never_exchanged
from orchestrator.config.python.user_code import source_location
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import ConfigError, Problem, RunError
from orchestrator.loop.model.meta_device import initialized_shards, is_on_meta, parameters_on_meta
from orchestrator.loop.model.torch_settings import compile_mode
from orchestrator.loop.step.task_errors import check_type
from orchestrator.loop.world import World
from orchestrator.task import Task, has_turns

# Buffers are left to the sync_buffers hook: once per phase instead of once per forward pass. The option had another
# name before torch 2.13.
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


def built(task: Task, experiment: Experiment, world: World) -> nn.Module:
    """Return the task's model, with parameters on the meta device if no rank builds it whole."""
    on_meta = experiment.workers.meta_device and world.world_size > 1
    with parameters_on_meta() if on_meta else nullcontext():
        return check_type(task.model, task.model(), nn.Module, "the model, a torch.nn.Module")


def shared(module: nn.Module, task: Task, experiment: Experiment, world: World) -> nn.Module:
    """Return the model on this rank's device, shared with the other ranks, for the training step."""
    if world.world_size == 1 or not any(p.requires_grad for p in module.parameters()):
        return module.to(world.device)
    if experiment.workers.strategy == "fsdp":
        units = {*task.fsdp_units(module)}
        if experiment.compile:
            _compile_units(units, compile_mode(experiment))
        return sharded(module, units, world, experiment.precision)
    if has_turns(type(task)) or experiment.accumulate == "auto":
        # Each turn exchanges the gradients of its parameters, and DDP would need all of them. DDP also exchanges
        # within the backward pass, where a rank may run out of memory.
        coalesced.broadcast([*module.to(world.device).parameters(), *module.buffers()])
        return module
    devices = [world.device] if world.device.type == "cuda" else None
    options = {_SYNC_BUFFERS: False, **experiment.workers.ddp.model_dump()}
    return DistributedDataParallel(WithinOneCall(module.to(world.device)), device_ids=devices, **options)


class WithinOneCall(nn.Module):
    """A model within DDP, called as a whole, or with a function that may call its parts one by one.

    DDP prepares the backward pass in its own call. Each rank would silently train a part that is called outside it on
    its own.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, run: Callable[[nn.Module], Any] | None = None, **named: Any) -> Any:
        return run(self.module) if run else self.module(*inputs, **named)


def forward_pass(task: Task, model: nn.Module, module: nn.Module) -> Callable[[nn.Module, Any], Any]:
    """Return the task's forward pass, which gets the task's own `module` also within `model`.

    With a sharded module the pass raises RunError unless it calls the module as a whole, which gathers the shards.
    """
    if is_sharded(module):
        return _calling_the_whole(task, module)
    if model is module:
        return task.forward

    def forward(called: nn.Module, batch: Any) -> Any:
        return model(run=lambda own: task.forward(own, batch)) if called is model else task.forward(called, batch)

    return forward


def _calling_the_whole(task: Task, module: nn.Module) -> Callable[[nn.Module, Any], Any]:
    under_way = within = False

    def entered(module: nn.Module, inputs: Any) -> None:
        nonlocal within
        within = True

    def left(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal within
        within = False

    def check_part(part: nn.Module, inputs: Any) -> None:
        if under_way and not within:
            raise RunError(
                f"{type(task).__name__}.forward() calls a part of the model ({type(part).__name__}) and not the model,"
                " and with strategy: fsdp a part alone has nothing gathered. Do it in the model's own forward() and"
                f" call that, model(batch), or write strategy: ddp{source_location(task.forward)}"
            )

    def forward(called: nn.Module, batch: Any) -> Any:
        nonlocal under_way
        under_way = called is module
        try:
            return task.forward(called, batch)
        finally:
            under_way = False

    for part in module.modules():
        part.register_forward_pre_hook(entered if part is module else check_part)
    module.register_forward_hook(left, always_call=True)
    return forward


def sharded(module: nn.Module, units: Collection[nn.Module], world: World, precision: str) -> nn.Module:
    """Return the module with parameters sharded along the first dimension, as DTensors.

    A unit's parameters are gathered together and released after it, in the backward pass too; so is the rest of the
    module. With bf16 they are gathered and multiplied in bf16, while shards, optimizer and sums of gradients are fp32.
    Layers with running statistics stay fp32. Buffers are whole on each rank.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(world.device.type, (world.world_size,))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = half if precision == "bf16" else MixedPrecisionPolicy()
    values = initialized_shards(module, units, mesh) if is_on_meta(module) else {}
    # From the inside out, as what is sharded already is no part of what is around it.
    for part in reversed([*module.modules()]):
        if part is module or not any(True for _ in part.parameters()):
            continue
        # Let go at the end of each call, the module's own too: a hook may change shards between two of them.
        if precision == "bf16" and isinstance(part, RunningNorm):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
        elif part in units:
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    if values:
        module.load_state_dict(values, strict=False, assign=True)
    return module


def _compile_units(units: Collection[nn.Module], mode: str | None) -> None:
    """Compile each unit's computation, without the calls that gather and release its parameters."""
    if not units:
        raise ConfigError(
            [
                Problem(
                    "compile",
                    "has no effect: with workers.strategy: fsdp units are compiled, and fsdp_units(model) gives none",
                )
            ]
        )
    for unit in units:
        unit.forward = torch.compile(unit.forward, mode=mode)  # so that what lies around the call stays there


def is_sharded(module: nn.Module) -> bool:
    """Return whether ranks have shards of the module, so that all of them must take part in each call."""
    return any(shards.is_sharded(parameter) for parameter in module.parameters())


def exchange_gradients(model: nn.Module, now: bool) -> None:
    """Set whether the next backward pass exchanges gradients with other ranks, or accumulates them on each."""
    if isinstance(model, DistributedDataParallel):
        # DDP's no_sync() sets this, but as a context would have to surround half the iteration.
        model.require_backward_grad_sync = now
    elif callable(exchange := getattr(model, "set_requires_gradient_sync", None)):
        exchange(now)


def check_exchanged(model: DistributedDataParallel) -> None:
    """Raise RunError if the last backward pass has not exchanged all gradients, as the loss does not depend on some."""
    left = gradients_never_exchanged(model)
    if left is None:
        return
    trained = [name for name, parameter in model.module.module.named_parameters() if parameter.requires_grad]
    names = [trained[place] for place in left if place < len(trained)]
    some = (
        f"{len(names)} of the model's {len(trained)} parameters ({listed(names, 4)})"
        if names
        else "all of the model's parameters"
    )
    if model.find_unused_parameters:
        mend = (
            "torch looks for parameters that are not used from the output on: let forward() give its tensors in lists,"
            " tuples or mappings"
        )
    elif model.static_graph:
        mend = (
            "static_graph says that each iteration uses the same ones: take it away, or write find_unused_parameters:"
            " true instead"
        )
    else:
        mend = (
            "Use them in forward() in every iteration, write requires_grad_(False) for them in model(), or let ranks"
            " look for them each time: workers: {ddp: {find_unused_parameters: true}}"
        )
    raise RunError(f"the loss does not depend on {some}, so ranks cannot exchange their gradients. {mend}")


def mesh_of(module: nn.Module) -> Any:
    """Return the device mesh over which a module is sharded; None if it is whole."""
    parameter: Any = next(filter(shards.is_sharded, module.parameters()), None)
    return None if parameter is None else parameter.device_mesh


def sharded_model(saved: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return a module's saved state dict with this rank's shards, if the module is sharded."""
    if not is_sharded(module):
        return saved
    present = module.state_dict()
    again = copy(saved)  # which has more to it than its items
    again.update({name: shards.like(value, present[name]) for name, value in saved.items() if name in present})
    return again


def sharded_optimizer(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's saved state dict, with tensors of a parameter's shape sharded as the parameter is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not any(map(shards.is_sharded, parameters)):
        return saved

    def fitted(value: Any, parameter: Tensor) -> Any:
        return shards.like(value, parameter) if isinstance(value, Tensor) and value.shape == parameter.shape else value

    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    of_number = dict(zip(numbers, parameters, strict=False))
    state = {
        number: (
            {name: fitted(value, of_number[number]) for name, value in kept.items()} if number in of_number else kept
        )
        for number, kept in saved["state"].items()
    }
    return {**saved, "state": state}

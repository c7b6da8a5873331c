"""Building a model for data-parallel training with DDP or FSDP, also on torch's meta device. Runs
in workers."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from copy import copy
from inspect import signature
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hooks.distributed import collectives
from hooks.distributed import sharded_tensors as shards
from hooks.model.buffers import copy_expanded_buffers
from hooks.model.layers import RunningNorm
from hooks.parameter_names import listed
from hooks.private_torch import gradients_never_exchanged
from orchestrator.errors import ConfigError, TaskError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.model.torch_settings import compile_mode
from orchestrator.loop.task_errors import check_type
from orchestrator.loop.world import World
from orchestrator.randomness import seed_all
from orchestrator.task import Task, has_turns

# The hook sync_buffers averages buffers once per phase; DDP would copy them in each forward pass. The
# option had a different name before torch 2.13.
_HAS_NEW_NAME = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if _HAS_NEW_NAME else "broadcast_buffers"


def wrap_model(module: nn.Module, task: Task, experiment: Experiment, world: World) -> nn.Module:
    """Return the model on this rank's device, wrapped for data-parallel training."""
    if world.world_size == 1 or not any(p.requires_grad for p in module.parameters()):
        return module.to(world.device)
    if experiment.workers.strategy == "fsdp":
        units = {*task.fsdp_units(module)}
        if experiment.compile and not units:
            raise ConfigError.at(
                "compile",
                "has no effect: it compiles FSDP units, and fsdp_units(model) returns none",
            )
        if experiment.compile:
            for unit in units:
                # Not the calls that gather and release its parameters.
                unit.forward = torch.compile(unit.forward, mode=compile_mode(experiment))
        return shard(module, units, world, experiment.precision)
    if has_turns(type(task)) or experiment.accumulate == "auto":
        # Without DDP: it needs gradients of all parameters, but a turn computes only some. And it
        # communicates during the backward pass, in which a rank may run out of memory.
        collectives.broadcast([*module.to(world.device).parameters(), *module.buffers()])
        return module
    devices = [world.device] if world.device.type == "cuda" else None
    options = {_SYNC_BUFFERS: False, **experiment.workers.ddp.model_dump()}
    return DistributedDataParallel(
        WithinOneCall(module.to(world.device)), device_ids=devices, **options
    )


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


def is_sharded(module: nn.Module) -> bool:
    """Return whether the module is sharded across ranks, so all of them must take part in each
    call."""
    return any(shards.is_sharded(parameter) for parameter in module.parameters())


def set_gradient_sync(model: nn.Module, now: bool) -> None:
    """Set whether the next backward pass synchronizes gradients across ranks, or accumulates them
    locally."""
    if isinstance(model, DistributedDataParallel):
        # DDP's no_sync() does the same, but a context would have to enclose half the iteration.
        model.require_backward_grad_sync = now
        return
    exchange = getattr(model, "set_requires_gradient_sync", None)
    if callable(exchange):
        exchange(now)


def check_gradients_synced(model: DistributedDataParallel) -> None:
    """Raise TaskError if the last backward pass did not synchronize all gradients: some parameters
    are unused, or have been unfrozen since the start."""
    unfrozen = [name for name, value in model.module.frozen.items() if value.requires_grad]
    if unfrozen:
        raise TaskError(
            f"{listed(unfrozen, 4)} did not require gradients when the ranks started, so DDP does not exchange them."
            " Let model() return trainable parameters, and freeze them with the hook freeze_parameters, whose `until`"
            " says for how long"
        )
    indices = gradients_never_exchanged(model)
    if indices is None:
        return
    trained = model.module.trained
    names = [trained[index] for index in indices if index < len(trained)]
    unused = "the model"
    if names:
        unused = f"{len(names)} of the model's {len(trained)} parameters ({listed(names, 4)})"
    advice = (
        "Use them in every forward(), call requires_grad_(False) for them in model(), or set"
        " workers: {ddp: {find_unused_parameters: true}}, without static_graph"
    )
    if model.find_unused_parameters:
        advice = (
            "Return the output of forward() as tensors in lists, tuples or mappings, in which"
            " torch looks for them"
        )
    raise TaskError(
        f"the loss does not depend on {unused}, so ranks cannot exchange their gradients. {advice}"
    )


def mesh_of(module: nn.Module) -> Any:
    """Return the device mesh over which a module is sharded; None if it is not sharded."""
    parameter: Any = next(filter(shards.is_sharded, module.parameters()), None)
    return None if parameter is None else parameter.device_mesh


def sharded_model(saved: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return a module's saved state dict with this rank's shards, if the module is sharded."""
    if not is_sharded(module):
        return saved
    present = module.state_dict()
    own_shards = copy(saved)  # keeps the metadata that torch stores as an attribute
    own_shards.update(
        {
            name: shards.like(value, present[name])
            for name, value in saved.items()
            if name in present
        }
    )
    return own_shards


def sharded_optimizer(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's saved state dict, with tensors of a parameter's shape sharded like the
    parameter."""
    parameters = _list_parameters(optimizer.param_groups)
    if not has_form_of_torch(saved) or not any(map(shards.is_sharded, parameters)):
        return saved

    def shard_like(value: Any, parameter: Tensor) -> Any:
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            return shards.like(value, parameter)
        return value

    numbers = _list_parameters(saved["param_groups"])
    state = dict(saved["state"])
    for number, parameter in zip(numbers, parameters, strict=False):
        if number in state:
            state[number] = {
                name: shard_like(value, parameter) for name, value in state[number].items()
            }
    return {**saved, "state": state}


def has_form_of_torch(saved: Mapping[str, Any]) -> bool:
    """Return whether an optimizer's state dict has torch's form. Some optimizers that wrap others
    have one of their own."""
    return {"state", "param_groups"} <= saved.keys()


def _list_parameters(groups: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the parameters of all groups, or in a state dict their numbers."""
    return [*chain.from_iterable(group["params"] for group in groups)]


INITIALIZERS = ("reset_parameters", "init_weights", "_reset_parameters")
"""Methods that initialize a module's tensors; torch's attention has the last one."""


def build_model(task: Task, on_meta: bool) -> nn.Module:
    """Build the task's model. Raises TaskError if `on_meta` and a part of it has no method to
    initialize it."""
    with torch.device("meta") if on_meta else nullcontext():
        module = check_type(task.model, task.model(), nn.Module, "the model, a torch.nn.Module")
    own_tensors = {
        name: [*part.parameters(False), *part.buffers(False)]
        for name, part in module.named_modules()
    }
    parts = [
        name
        for name, tensors in own_tensors.items()
        if tensors and not _find_initializer(module.get_submodule(name))
    ]
    if on_meta and parts:
        names = listed(
            [f"'{name}' ({type(module.get_submodule(name)).__name__})" for name in parts], 4
        )
        raise TaskError(f"workers.meta_device: parts of the model need reset_parameters(): {names}")
    copy_expanded_buffers(module)
    return module


def initialize_shards(module: nn.Module, seed: int, world: World) -> None:
    """Allocate and initialize this rank's shards of a model from the meta device; collective."""
    module.to_empty(device=world.device)
    seed_all(seed + world.rank)
    # A model's own method comes after those of its parts.
    for part in reversed([*module.modules()]):
        if initialize := _find_initializer(part):
            initialize()
    collectives.broadcast([*module.buffers()])


def _find_initializer(part: nn.Module) -> Callable[[], Any] | None:
    return next((getattr(part, name) for name in INITIALIZERS if hasattr(part, name)), None)

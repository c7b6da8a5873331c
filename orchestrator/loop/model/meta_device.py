"""Models that no rank builds whole: made on torch's meta device, initialized and sharded a unit at a time.

Runs in the worker process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from hooks.parameter_names import listed
from hooks.private_torch import count_writes, initializer
from orchestrator.errors import RunError


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Make the parameters of modules on torch's meta device meanwhile, without memory; buffers are as ever."""

    def without_memory(module: nn.Module, name: str, parameter: Any) -> Any:
        if parameter is None or parameter.is_meta:
            return None
        return nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    handle = register_module_parameter_registration_hook(without_memory)
    try:
        yield
    finally:
        handle.remove()


def is_on_meta(module: nn.Module) -> bool:
    """Return whether the module's parameters have no values yet."""
    return any(parameter.is_meta for parameter in module.parameters())


def initialized_shards(module: nn.Module, units: Collection[nn.Module], mesh: Any) -> dict[str, Tensor]:
    """Return this rank's shards of all parameters by name, initialized by `reset_parameters` of the parts.

    All ranks draw the same numbers, part by part in the order of the model. Host memory holds one unit at a time, and
    what is in no unit. Raises RunError for a parameter that two parts share, and for one that other code initializes.
    """
    uses = Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))
    names = {parameter: name for name, parameter in module.named_parameters()}
    _refuse([names[parameter] for parameter, count in uses.items() if count > 1], "are shared by two parts")
    shards: dict[nn.Parameter, Tensor] = {}
    in_units = {part for unit in units for part in unit.modules()}
    with _materialize(part for part in module.modules() if part not in in_units) as left_over:
        for part in _as_made(module, units):
            if part in units:
                with _materialize(part.modules()) as values:
                    _reset(_as_made(part))
                shards |= _sharded(values, names, mesh)
            else:
                _reset([part])
    shards |= _sharded(left_over, names, mesh)
    return {name: shards[parameter] for parameter, name in names.items()}


def _as_made(module: nn.Module, units: Collection[nn.Module] = ()) -> Iterator[nn.Module]:
    """Yield a module's parts, each after those within it; of a unit the unit alone."""
    for inner in module.children():
        if inner in units:
            yield inner
        else:
            yield from _as_made(inner, units)
    yield module


def _reset(parts: Iterator[nn.Module] | list[nn.Module]) -> None:
    for part in parts:
        if reset := initializer(part):
            reset()


@contextmanager
def _materialize(parts: Iterator[nn.Module]) -> Iterator[dict[nn.Parameter, nn.Parameter]]:
    """Give the parameters of parts memory meanwhile, filled with NaN; yields what stands in each one's place."""
    own = {(part, name): parameter for part in parts for name, parameter in part.named_parameters(recurse=False)}
    values = {
        parameter: nn.Parameter(torch.full_like(parameter, torch.nan, device="cpu"), parameter.requires_grad)
        for parameter in own.values()
    }
    for (part, name), parameter in own.items():
        setattr(part, name, values[parameter])
    yield values
    for (part, name), parameter in own.items():
        setattr(part, name, parameter)


def _sharded(values: dict[nn.Parameter, nn.Parameter], names: dict[nn.Parameter, str], mesh: Any) -> Any:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    # Another number of writes is another initialization.
    wrong = [
        names[parameter]
        for parameter, value in values.items()
        if count_writes(value) != count_writes(parameter) or value.isnan().any()
    ]
    _refuse(wrong, "get their values otherwise than by reset_parameters() of the parts that they are of")
    whole = {
        parameter: DTensor.from_local(value.detach().to(mesh.device_type), mesh, [Replicate()], run_check=False)
        for parameter, value in values.items()
    }
    return {parameter: value.redistribute(placements=[Shard(0)]) for parameter, value in whole.items()}


def _refuse(names: list[str], reason: str) -> None:
    if names:
        raise RunError(
            f"workers.meta_device: {len(names)} of the model's parameters ({listed(names, 4)}) {reason}."
            " Write reset_parameters() for that part, or remove workers.meta_device"
        )

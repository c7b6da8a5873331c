"""Modules whose parameters are sharded across ranks, and a rank's shards of their saved states. Runs
in workers."""

from collections.abc import Iterable, Mapping
from copy import copy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from hooks.distributed import sharded_tensors as shards


def is_sharded(module: nn.Module) -> bool:
    """Return whether the module is sharded across ranks, so all of them must take part in each
    call."""
    return any(shards.is_sharded(parameter) for parameter in module.parameters())


def get_mesh(module: nn.Module) -> Any:
    """Return the device mesh over which a module is sharded; None if it is not sharded."""
    parameter: Any = next(filter(shards.is_sharded, module.parameters()), None)
    return None if parameter is None else parameter.device_mesh


def shard_model_state(saved: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return a module's saved state dict with this rank's shards, if the module is sharded."""
    if not is_sharded(module):
        return saved
    present = module.state_dict()
    own_shards = copy(saved)  # keeps the metadata that torch stores as an attribute
    for name, value in saved.items():
        if name in present:
            own_shards[name] = shards.shard_like(value, present[name])
    return own_shards


def shard_optimizer_state(
    saved: dict[str, Any], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Return an optimizer's saved state dict, with tensors of a parameter's shape sharded like the
    parameter."""
    parameters = _list_parameters(optimizer.param_groups)
    if not has_form_of_torch(saved) or not any(map(shards.is_sharded, parameters)):
        return saved

    def shard_like(value: Any, parameter: Tensor) -> Any:
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            return shards.shard_like(value, parameter)
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

"""The state of an optimizer in a checkpoint, with that of optimizers that it holds."""

from collections.abc import Container, Iterable, Mapping
from inspect import Parameter, signature
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hooks.distributed import sharded_tensors as shards
from orchestrator.disk.checkpoints.placeholders import tensors_in

_INNER = "inner"
_OF_SCHEDULERS = {"lr", "momentum", "betas"}
"""Keys of parameter groups that schedulers set. An optimizer may name its arguments otherwise."""


def find_inner_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """Return the optimizers that an optimizer holds, by name, such as `base_optimizer` of SAM.

    They are its attributes, or in containers there.
    """
    inner: dict[str, Optimizer] = {}
    for name, value in vars(optimizer).items():
        for path, part in _list_entries(name, value):
            if isinstance(part, Optimizer):
                inner[path] = part
    return inner


def _list_entries(name: str, value: object) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"{name}.{number}", part) for number, part in enumerate(value.values())]
    if isinstance(value, (list, tuple)):
        return [(f"{name}.{number}", part) for number, part in enumerate(value)]
    return [(name, value)]


def list_counters(optimizer: Optimizer) -> set[str]:
    """Return the keys of parameter groups in which an optimizer counts its own progress.

    Schedule-free optimizers have some. Such a key has a default, but is no argument of the class,
    and no scheduler sets it.
    """
    parameters = signature(type(optimizer)).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return set()
    return optimizer.defaults.keys() - parameters.keys() - _OF_SCHEDULERS


def save_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's state dict, with those of the optimizers in it that it may not save.

    They are under `inner`.
    """
    return _save_state(optimizer, ())


def _save_state(optimizer: Optimizer, outer: tuple[Optimizer, ...]) -> dict[str, Any]:
    """Return an optimizer's state dict, without those of the optimizers around it, to which it may
    refer."""
    state = optimizer.state_dict()
    saved = {id(tensor) for tensor in tensors_in(state)}
    around = (*outer, optimizer)
    unsaved = {}
    for name, inner in find_inner_optimizers(optimizer).items():
        if any(inner is other for other in around):
            continue
        part = _save_state(inner, around)
        tensors = [*tensors_in(part)]
        # Without tensors it cannot be told apart: it may count its steps, or change its settings.
        if not tensors or any(id(tensor) not in saved for tensor in tensors):
            unsaved[name] = part
    return {**state, _INNER: unsaved} if unsaved else state


def list_group_parameters(optimizer: Optimizer, module: nn.Module) -> list[list[str]]:
    """Return the names of the parameters of each group; empty for those outside the model."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    names_of_groups = []
    for group in optimizer.param_groups:
        names_of_groups.append([names.get(parameter, "") for parameter in group["params"]])
    return names_of_groups


def load_state(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load the result of `save_state` into an optimizer, with the dtypes of the saved tensors.

    `load_state_dict` converts floating-point tensors to the parameter's dtype, which would change
    the single-precision factors of ASGD and NAdam. It also replaces the parameter groups, which an
    inner optimizer may share. Either of the two may be the one whose groups are replaced.
    """
    inner = find_inner_optimizers(optimizer)
    sharing = [part for part in inner.values() if part.param_groups is optimizer.param_groups]
    unsaved = saved.get(_INNER, {})
    for name in inner.keys() & unsaved.keys():
        load_state(inner[name], unsaved[name])

    own = {name: part for name, part in saved.items() if name != _INNER}
    own = _shard_state(own, optimizer)
    groups = optimizer.param_groups
    optimizer.load_state_dict(own)
    for part in sharing:
        if optimizer.param_groups is groups:
            optimizer.param_groups = part.param_groups
        part.param_groups = optimizer.param_groups
    if not _has_form_of_torch(own):
        return
    for before, now in zip(own["param_groups"], optimizer.param_groups, strict=True):
        for number, parameter in zip(before["params"], now["params"], strict=True):
            state = optimizer.state.get(parameter, {})
            state.update(_restore_dtypes(state, own["state"].get(number)))


def load_with_present_settings(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load the result of `save_state`, but only the parameters and the counters of its groups."""
    kept = {"params", *list_counters(optimizer)}
    present = [_without(group, kept) for group in optimizer.param_groups]
    # If their number differs, `load_state_dict` raises an error that says so.
    if _has_form_of_torch(saved) and len(saved["param_groups"]) == len(present):
        # By the settings, torch decides on which device a state belongs.
        pairs = zip(saved["param_groups"], present, strict=True)
        saved = {**saved, "param_groups": [{**before, **now} for before, now in pairs]}
    load_state(optimizer, saved)
    for group, settings in zip(optimizer.param_groups, present, strict=True):
        group.update(settings)


def _without(group: Mapping[str, Any], keys: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in keys}


def _restore_dtypes(loaded: Any, saved: Any) -> Any:
    """Return a loaded value, with the saved tensor for each that has another dtype.

    An optimizer may have changed other parts in `__setstate__`, as torch's own do with states of
    older versions.
    """
    if isinstance(loaded, Tensor) and isinstance(saved, Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(loaded, dict) and isinstance(saved, dict):
        return {key: _restore_dtypes(value, saved.get(key)) for key, value in loaded.items()}
    if not isinstance(loaded, (list, tuple)) or type(loaded) is not type(saved):
        return loaded
    if len(loaded) != len(saved):
        return loaded
    return type(loaded)(map(_restore_dtypes, loaded, saved))


def _shard_state(saved: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's saved state dict, with tensors of a parameter's shape sharded like the
    parameter."""
    parameters = _list_parameters(optimizer.param_groups)
    if not _has_form_of_torch(saved) or not any(map(shards.is_sharded, parameters)):
        return saved

    numbers = _list_parameters(saved["param_groups"])
    state = dict(saved["state"])
    for number, parameter in zip(numbers, parameters, strict=False):
        if number in state:
            state[number] = _shard_like(state[number], parameter)
    return {**saved, "state": state}


def _shard_like(value: Any, parameter: Tensor) -> Any:
    """Return a value with its tensors of a parameter's shape sharded like the parameter."""
    if isinstance(value, Tensor) and value.shape == parameter.shape:
        return shards.shard_like(value, parameter)
    if isinstance(value, dict):
        return {key: _shard_like(part, parameter) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_shard_like(part, parameter) for part in value)
    return value


def _has_form_of_torch(saved: Mapping[str, Any]) -> bool:
    """Return whether an optimizer's state dict has torch's form. Some optimizers that wrap others
    have one of their own."""
    return {"state", "param_groups"} <= saved.keys()


def _list_parameters(groups: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the parameters of all groups, or in a state dict their numbers."""
    return [*chain.from_iterable(group["params"] for group in groups)]

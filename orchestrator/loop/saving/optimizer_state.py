"""The state of an optimizer in a checkpoint, with that of optimizers that it holds."""

from collections.abc import Container, Mapping
from inspect import Parameter, signature
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from orchestrator.disk.checkpoints.placeholders import tensors_in
from orchestrator.loop.model.sharded_modules import has_form_of_torch, shard_optimizer_state

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
    state = optimizer.state_dict()
    saved = {id(tensor) for tensor in tensors_in(state)}
    inner = {name: save_state(part) for name, part in find_inner_optimizers(optimizer).items()}
    unsaved = {}
    for name, part in inner.items():
        tensors = [*tensors_in(part)]
        # Without tensors it cannot be told apart: it may count its steps, or change its settings.
        if not tensors or any(id(tensor) not in saved for tensor in tensors):
            unsaved[name] = part
    return {**state, _INNER: unsaved} if unsaved else state


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
    own = shard_optimizer_state(own, optimizer)
    groups = optimizer.param_groups
    optimizer.load_state_dict(own)
    for part in sharing:
        if optimizer.param_groups is groups:
            optimizer.param_groups = part.param_groups
        part.param_groups = optimizer.param_groups
    if not has_form_of_torch(own):
        return
    for before, now in zip(own["param_groups"], optimizer.param_groups, strict=True):
        for number, parameter in zip(before["params"], now["params"], strict=True):
            state = optimizer.state.get(parameter, {})
            _restore_dtypes(state, own["state"].get(number, {}))


def load_with_present_settings(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load the result of `save_state`, but only the parameters and the counters of its groups."""
    kept = {"params", *list_counters(optimizer)}
    present = [_without(group, kept) for group in optimizer.param_groups]
    if has_form_of_torch(saved):
        # By the settings, torch decides on which device a state belongs.
        pairs = zip(saved["param_groups"], present, strict=True)
        saved = {**saved, "param_groups": [{**before, **now} for before, now in pairs]}
    load_state(optimizer, saved)
    for group, settings in zip(optimizer.param_groups, present, strict=True):
        group.update(settings)


def _without(group: Mapping[str, Any], keys: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in keys}


def _restore_dtypes(state: dict[str, Any], saved: Mapping[str, Any]) -> None:
    for name, value in saved.items():
        if isinstance(value, Tensor) and value.dtype != state[name].dtype:
            state[name] = value.to(state[name].device)

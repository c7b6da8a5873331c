"""Conflicts between an optimizer and its schedulers, which set its rate and may set its momentum."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.errors import Problem
from orchestrator.experiment.fields.class_models import make_signature_model
from orchestrator.experiment.optim.component import FROM_TASK, Component
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.optimizer import OPTIMIZERS
from orchestrator.experiment.optim.scheduler import RATES

_MOMENTA = {"momentum", "betas"}
"""Numbers of optimizers that a scheduler varies as their momentum; of `betas` the first."""

_RATE_KEYS = ("lr", "lr_scale", "layer_decay")
"""Keys of an optimizer or a group that set its learning rate."""


def find_rate_setter(optimization: Optimization) -> Component | None:
    """Return the first of an optimizer's schedulers if all of them set the learning rate, whatever
    the optimizer's own; otherwise None."""
    schedulers = list(optimization.schedulers.values())
    setters = [entry for entry in schedulers if RATES.get(entry.type) in entry.arguments]
    return setters[0] if setters and len(setters) == len(schedulers) else None


def find_unused_rate(optimization: Optimization) -> Iterator[Problem]:
    """Yield a problem for each rate of an optimizer or of its groups that has no effect, as all its
    schedulers set the rate."""
    entry = find_rate_setter(optimization)
    if entry is None:
        return
    rate = RATES[entry.type]
    message = f"has no effect with {entry.type}, whose {rate} sets the learning rate"
    has_rate_of_each_group = isinstance(entry.arguments[rate], list)
    for path, settings in _list_settings(optimization):
        if path != optimization.path and has_rate_of_each_group:
            # A group that differs in its rate alone needs a setting that sets it apart.
            continue
        for key in _RATE_KEYS:
            if key not in settings:
                continue
            hint = f"{path}.{key}=null removes it"
            if path != optimization.path:
                hint = f"remove it; without {rate}, each group has a rate of its own"
            yield Problem(f"{path}.{key}", message, suggestion=hint)


def find_unused_momentum(optimization: Optimization) -> Iterator[Problem]:
    """Yield a problem for each scheduler that varies the momentum between bounds of its own, if all
    do, so that the momentum of the optimizer or of a group has no effect."""
    cycles = list(_list_momentum_cycles(optimization))
    if len(cycles) < len(optimization.schedulers):
        return
    for path, settings in _list_settings(optimization):
        # torch builds no Nesterov momentum without one.
        if "momentum" not in settings or settings.get("nesterov"):
            continue
        for scheduler, entry in cycles:
            yield Problem(
                f"{path}.momentum",
                f"has no effect with {entry.type}, which varies the momentum",
                suggestion=f"remove it, or set {scheduler}.cycle_momentum=false",
            )


def find_missing_momentum(optimization: Optimization) -> Iterator[Problem]:
    """Yield a problem for each scheduler that varies a momentum which the optimizer lacks."""
    kind = optimization.optimizer.type
    cls: Any = OPTIMIZERS.get(kind)
    if cls is None or _MOMENTA & make_signature_model(cls).model_fields.keys():
        return
    for path, entry in _list_momentum_cycles(optimization):
        yield Problem(
            f"{path}.cycle_momentum",
            f"must be false: {kind} has no momentum for {entry.type} to vary",
        )


def find_overwritten_number(optimization: Optimization, key: str) -> Iterator[Problem]:
    """Yield a problem for each scheduler that sets an optimizer's number, so that a change of it
    would be lost at the scheduler's next step."""
    name = key.rpartition(".")[2]
    setter = find_rate_setter(optimization)
    if name in _RATE_KEYS and setter is not None:
        yield Problem(
            f"{optimization.path}.{key}",
            f"cannot change, because the {RATES[setter.type]} of {setter.type} sets the learning rate",
        )
    if name not in _MOMENTA:
        return
    for path, entry in _list_momentum_cycles(optimization):
        yield Problem(
            f"{optimization.path}.{key}",
            f"cannot change, because {entry.type} sets the momentum",
            suggestion=f"set {path}.cycle_momentum=false",
        )


def _list_settings(optimization: Optimization) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the settings of an optimizer, and of each of its groups, unless its task
    makes it."""
    if optimization.optimizer.type in ("", FROM_TASK):
        return
    yield optimization.path, optimization.arguments
    groups = optimization.groups
    for index, group in enumerate(groups if isinstance(groups, list) else ()):
        if isinstance(group, Mapping):
            written = {key: value for key, value in group.items() if value is not None}
            yield f"{optimization.path}.groups.{index}", written


def _list_momentum_cycles(optimization: Optimization) -> Iterator[tuple[str, Component]]:
    """Yield the path and the entry of each scheduler that varies the momentum."""
    for path, entry in optimization.schedulers.items():
        if entry.type in ("CyclicLR", "OneCycleLR") and entry.arguments.get("cycle_momentum", True):
            yield path, entry

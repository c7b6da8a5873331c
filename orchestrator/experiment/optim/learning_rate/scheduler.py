"""One learning-rate scheduler: torch's, a custom class, or the task's own."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch.optim.lr_scheduler
import torch.optim.swa_utils
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.fields.parameters import make_signature_model
from orchestrator.experiment.optim.component import FROM_TASK, Component
from orchestrator.experiment.optim.construction import (
    NoOptimizer,
    build_component,
    check_component,
    fill_method_defaults,
    find_subclasses,
    make_method_model,
)
from orchestrator.task import Task
from orchestrator.user_code import find_class, find_source_location

_UNWRITABLE = {
    **dict.fromkeys(
        ("ChainedScheduler", "SequentialLR"), "combines schedulers; write a list of them"
    ),
    **dict.fromkeys(
        ("LambdaLR", "MultiplicativeLR"),
        "takes a function, which YAML cannot hold; define scheduler() in the task",
    ),
}
"""Schedulers of torch that a file cannot describe, and why."""

SCHEDULERS = {
    **find_subclasses(torch.optim.lr_scheduler, LRScheduler),
    **find_subclasses(torch.optim.swa_utils, LRScheduler),
}
for _name in _UNWRITABLE:
    del SCHEDULERS[_name]

LENGTHS = ("T_max", "total_steps", "total_iters")
"""Arguments for the length of a schedule; by default the run's length."""
_COUNTS = (*LENGTHS, "step_size", "step_size_up", "step_size_down")
"""Arguments that torch would find to be wrong only at a step."""
_COUNTED_FROM_START = {*LENGTHS, "milestones"}
"""Arguments that count from the run's beginning, even where the scheduler begins after a
warm-up."""

RATES = {"OneCycleLR": "max_lr", "CyclicLR": "base_lr"}
"""Schedulers that set the rate themselves, and the argument; by default the optimizer's rate."""


def list_argument_names(kind: str, task: type[Task], path: str) -> set[str]:
    """Return the names of a scheduler's arguments, or raise ConfigError for its `type`."""
    if kind == FROM_TASK:
        return set(make_method_model(task, "scheduler").model_fields)
    if not kind:
        raise ConfigError.at(f"{path}.type", "is missing")
    if kind in _UNWRITABLE:
        raise ConfigError.at(f"{path}.type", f"{kind} {_UNWRITABLE[kind]}")
    cls: Any = find_class(kind, LRScheduler, SCHEDULERS, f"{path}.type")
    return set(make_signature_model(cls).model_fields)


def needs_metric(scheduler: Component, path: str) -> bool:
    """Return whether a scheduler steps by a metric, as ReduceLROnPlateau does."""
    if scheduler.type in ("", FROM_TASK):
        return False
    cls = find_class(scheduler.type, LRScheduler, SCHEDULERS, f"{path}.type")
    return issubclass(cls, ReduceLROnPlateau)


# Arguments


def add_length(
    kind: str, arguments: dict[str, Any], task: type[Task], length: int, path: str
) -> dict[str, Any]:
    """Add the length of a schedule to the arguments, unless it is written.

    Raises ConfigError if it is too short.
    """
    names = list_argument_names(kind, task, path)
    if kind == "OneCycleLR":
        _check_cycle_length(arguments, length, path)
        if {"epochs", "steps_per_epoch"} & arguments.keys():  # its other way to set the length
            names.discard("total_steps")
    missing = [name for name in LENGTHS if name in names and arguments.get(name) is None]
    return {**arguments, **dict.fromkeys(missing, length)}


def _check_cycle_length(arguments: Mapping[str, Any], length: int, path: str) -> None:
    """Raise ConfigError for a cycle that ends within the run, where torch would raise."""
    counts = [arguments.get("total_steps")]
    if {"epochs", "steps_per_epoch"} & arguments.keys():
        counts = [arguments.get("epochs"), arguments.get("steps_per_epoch")]
    written = [count for count in counts if type(count) is int]
    total = math.prod(written)
    if len(written) == len(counts) and 0 < total < length:
        raise ConfigError.at(
            f"{path}.total_steps",
            f"must be at least {length}, the scheduler's steps in this run, got {total}",
        )


def count_from(begin: int, arguments: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the arguments, those that count from the run's beginning counted from `begin`.

    Raises ConfigError.
    """
    changed = dict(arguments)
    for key in _COUNTED_FROM_START & arguments.keys():
        value = arguments[key]
        counts = value if isinstance(value, list) else [value]
        if not all(type(count) is int and count > begin for count in counts):
            rule = f"must be greater than the warm-up of {begin}, got {value!r}"
            raise ConfigError.at(f"{path}.{key}", f"counts from the run's beginning, and {rule}")
        rest = [count - begin for count in counts]
        changed[key] = rest if isinstance(value, list) else rest[0]
    return changed


def _add_rate(kind: str, arguments: Mapping[str, Any], rate: Any) -> dict[str, Any]:
    return {RATES[kind]: rate, **arguments} if kind in RATES else dict(arguments)


# Checking and building


def check_scheduler(kind: str, arguments: Mapping[str, Any], task: type[Task], path: str) -> None:
    """Check a scheduler before there is an optimizer, or raise ConfigError."""
    if kind == FROM_TASK:
        fill_method_defaults(Component.model_validate(arguments), task, "scheduler", path)
        return
    if kind in SCHEDULERS:
        _check_counts(arguments, path)
    complete = _add_rate(kind, arguments, 1.0)
    check_component(kind, complete, LRScheduler, SCHEDULERS, NoOptimizer(), path, ("type",))


def _check_counts(arguments: Mapping[str, Any], path: str) -> None:
    problems: list[Problem] = []
    for key in _COUNTS:
        count = arguments.get(key)
        if isinstance(count, int | float) and count <= 0:
            problems.append(Problem(f"{path}.{key}", f"must be greater than 0, got {count}"))
    if problems:
        raise ConfigError(problems)


def build_scheduler(
    kind: str, arguments: Mapping[str, Any], task: Task, optimizer: Optimizer, path: str
) -> Any | None:
    """Build a scheduler, or return None if the task's method does; may raise ConfigError."""
    if kind == FROM_TASK:
        return _build_by_task(arguments, task, optimizer, path)
    cls: Callable[..., Any] = find_class(kind, LRScheduler, SCHEDULERS, f"{path}.type")
    rates = [group["lr"] for group in optimizer.param_groups]
    return build_component(cls, optimizer, kind, _add_rate(kind, arguments, rates), path)


def _build_by_task(
    arguments: Mapping[str, Any], task: Task, optimizer: Optimizer, path: str
) -> Any | None:
    built = task.scheduler(optimizer, **arguments)
    has_step = callable(getattr(built, "step", None)) and not isinstance(built, type)
    if built is None or has_step:
        return built
    message = f"{type(task).__name__}.scheduler() must return a scheduler or None, got {built!r}"
    raise ConfigError.at(path, f"{message}{find_source_location(task.scheduler)}")

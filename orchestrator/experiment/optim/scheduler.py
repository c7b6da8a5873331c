"""A learning-rate scheduler: torch's, a custom class, or the task's own."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.optim.lr_scheduler
import torch.optim.swa_utils
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from orchestrator.errors import ConfigError, Problem, raise_problems
from orchestrator.experiment.fields.parameters import make_signature_model
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.optim.component import (
    FROM_TASK,
    Component,
    LRSchedulers,
    Optimization,
)
from orchestrator.experiment.optim.construction import (
    NoOptimizer,
    build_component,
    check_component,
    fill_method_defaults,
    find_subclasses,
    has_own_method,
    make_method_model,
)
from orchestrator.experiment.optim.optimizer import OPTIMIZERS
from orchestrator.experiment.optim.scheduler_keys import PhaseBounds, WarmUp
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

_LENGTHS = ("T_max", "total_steps", "total_iters")
"""Arguments for the length of a schedule; by default the run's length."""
_COUNTS = (*_LENGTHS, "step_size", "step_size_up", "step_size_down")
"""Arguments that torch would find to be wrong only at a step."""
_COUNTED_FROM_START = {*_LENGTHS, "milestones"}
"""Arguments that count from the run's beginning, even where the scheduler begins after a
warm-up."""
_RATES = {"OneCycleLR": "max_lr", "CyclicLR": "base_lr"}
"""Schedulers that set the rate themselves, and the argument; by default the optimizer's rate."""


@dataclass(frozen=True)
class LRPhase:
    """A scheduler, its arguments in its own steps, and its part of the schedule."""

    path: str
    kind: str
    arguments: Mapping[str, Any]
    begin: int = 0
    """Steps of the schedule after which it begins."""
    last: int | None = None
    """The last step of the schedule that it takes; None for no end."""
    every: int = 1
    """Steps of the schedule for each of its own."""

    def check(self, task: type[Task]) -> None:
        """Check the scheduler before there is an optimizer, or raise ConfigError."""
        if self.kind == FROM_TASK:
            fill_method_defaults(self.arguments, task, "scheduler", self.path)
            return
        if self.kind in SCHEDULERS:
            self._check_counts()
        arguments = self._add_rate(1.0)
        check_component(
            self.kind, arguments, LRScheduler, SCHEDULERS, NoOptimizer(), self.path, ("type",)
        )

    def _check_counts(self) -> None:
        counts = {key: self.arguments.get(key) for key in _COUNTS}
        raise_problems(
            Problem(f"{self.path}.{key}", f"must be greater than 0, got {count}")
            for key, count in counts.items()
            if isinstance(count, int | float) and count <= 0
        )

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Build the scheduler, or return None if the task's method does; may raise ConfigError."""
        if self.kind == FROM_TASK:
            return self._build_by_task(task, optimizer)
        cls: Callable[..., Any] = _find_class(self.kind, self.path)
        arguments = self._add_rate([group["lr"] for group in optimizer.param_groups])
        return build_component(cls, optimizer, self.kind, arguments, self.path)

    def _build_by_task(self, task: Task, optimizer: Optimizer) -> Any | None:
        built = task.scheduler(optimizer, **self.arguments)
        has_step = callable(getattr(built, "step", None)) and not isinstance(built, type)
        if built is None or has_step:
            return built
        expected = "must return a scheduler or None"
        message = f"{type(task).__name__}.scheduler() {expected}, got {built!r}"
        raise ConfigError.at(self.path, f"{message}{find_source_location(task.scheduler)}")

    def _add_rate(self, rate: Any) -> dict[str, Any]:
        rates = {_RATES[self.kind]: rate} if self.kind in _RATES else {}
        return {**rates, **self.arguments}


def _find_class(kind: str, path: str) -> type[LRScheduler]:
    return find_class(kind, LRScheduler, SCHEDULERS, f"{path}.type")


def list_argument_names(kind: str, task: type[Task], path: str) -> set[str]:
    """Return the names of a scheduler's arguments, or raise ConfigError for its `type`."""
    if kind == FROM_TASK:
        return set(make_method_model(task, "scheduler").model_fields)
    if not kind:
        raise ConfigError.at(f"{path}.type", "is missing")
    if kind in _UNWRITABLE:
        raise ConfigError.at(f"{path}.type", f"{kind} {_UNWRITABLE[kind]}")
    cls: Any = _find_class(kind, path)
    return set(make_signature_model(cls).model_fields)


def needs_metric(scheduler: Component, path: str) -> bool:
    """Return whether a scheduler steps by a metric, as ReduceLROnPlateau does."""
    return scheduler.type not in ("", FROM_TASK) and issubclass(
        _find_class(scheduler.type, path), ReduceLROnPlateau
    )


# Keys beside the arguments


def split_arguments(
    scheduler: Component, task: type[Task], keys: type[Model], path: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scheduler's own arguments, and the keys beside them that it does not have."""
    own = list_argument_names(scheduler.type, task, path)
    beside = keys.model_fields.keys() - own
    arguments = scheduler.arguments
    extra = {key: value for key, value in arguments.items() if key in beside}
    return {key: value for key, value in arguments.items() if key not in beside}, extra


def fill_scheduler_defaults(
    scheduler: LRSchedulers | None, task: type[Task]
) -> LRSchedulers | None:
    """Return schedulers with their `type` and defaults; without `type`, the task's own.

    Raises ConfigError.
    """
    if isinstance(scheduler, list):
        return [
            _fill_defaults(entry, task, PhaseBounds, f"scheduler.{index}")
            for index, entry in enumerate(scheduler)
        ]
    return _fill_defaults(scheduler, task, WarmUp, "scheduler") if scheduler else None


def _fill_defaults(
    scheduler: Component, task: type[Task], keys: type[Model], path: str
) -> Component:
    if scheduler.type != FROM_TASK and (scheduler.type or not has_own_method(task, "scheduler")):
        return scheduler
    own = scheduler.model_copy(update={"type": FROM_TASK})
    arguments, extra = split_arguments(own, task, keys, path)
    complete = add_length(FROM_TASK, arguments, task, 1, path)
    filled = fill_method_defaults(complete, task, "scheduler", path)
    for name in _LENGTHS:
        if arguments.get(name) is None:
            filled.pop(name, None)  # the length is that of the run
    return Component.model_validate({**filled, **extra})


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
    missing = [name for name in _LENGTHS if name in names and arguments.get(name) is None]
    return {**arguments, **dict.fromkeys(missing, length)}


def _check_cycle_length(arguments: Mapping[str, Any], length: int, path: str) -> None:
    """Raise ConfigError for a cycle that ends within the run, where torch would raise."""
    counts: list[Any] = [arguments.get("total_steps")]
    if {"epochs", "steps_per_epoch"} & arguments.keys():
        counts = [arguments.get("epochs"), arguments.get("steps_per_epoch")]
    if not all(type(count) is int for count in counts):
        return
    total = math.prod(counts)
    if 0 < total < length:
        rule = f"must be at least {length}, the scheduler's steps in this run"
        raise ConfigError.at(f"{path}.total_steps", f"{rule}, got {total}")


def count_from(begin: int, arguments: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the arguments, those that count from the run's beginning counted from `begin`.

    Raises ConfigError.
    """
    changed = dict(arguments)
    for key in _COUNTED_FROM_START & arguments.keys():
        value = arguments[key]
        counts = value if isinstance(value, list) else [value]
        if not all(type(count) is int and count > begin for count in counts):
            rule = f"must be an integer greater than the warm-up of {begin}, got {value!r}"
            raise ConfigError.at(f"{path}.{key}", f"counts from the run's beginning, and {rule}")
        rest = [count - begin for count in counts]
        changed[key] = rest if isinstance(value, list) else rest[0]
    return changed


# An optimizer and its schedulers


def find_unused_rate(optimization: Optimization) -> Iterator[Problem]:
    """Yield a problem if an optimizer's rate has no effect, as all its schedulers set the rate."""
    kinds = [
        entry.type
        for entry in optimization.schedulers.values()
        if _RATES.get(entry.type) in entry.arguments
    ]
    optimizer = optimization.optimizer
    has_rate = "lr" in optimizer.arguments and optimizer.type not in ("", FROM_TASK)
    if has_rate and kinds and len(kinds) == len(optimization.schedulers):
        message = f"has no effect with {kinds[0]}, whose {_RATES[kinds[0]]} sets the learning rate"
        path = f"{optimization.path}.lr"
        yield Problem(path, message, suggestion=f"{path}=null removes it")


def find_missing_momentum(optimization: Optimization) -> Iterator[Problem]:
    """Yield a problem for each scheduler that varies a momentum which the optimizer lacks."""
    kind = optimization.optimizer.type
    cls: Any = OPTIMIZERS.get(kind)
    if cls is None or {"momentum", "betas"} & make_signature_model(cls).model_fields.keys():
        return
    for path, entry in optimization.schedulers.items():
        if entry.type in ("CyclicLR", "OneCycleLR") and entry.arguments.get("cycle_momentum", True):
            yield Problem(
                f"{path}.cycle_momentum",
                f"must be false: {kind} has no momentum for {entry.type} to vary",
            )

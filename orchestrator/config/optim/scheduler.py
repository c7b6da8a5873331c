"""One scheduler: its class, its arguments and its length, checked in the driver and built in each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.optim.lr_scheduler
import torch.optim.swa_utils
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from orchestrator.config.optim.optimizer import (
    OWN,
    NoOptimizer,
    check_component,
    made_of,
    model_of_own,
    own_method_with_defaults,
    subclasses_in,
)
from orchestrator.config.python.imports import find_class
from orchestrator.config.python.parameters import signature_model
from orchestrator.config.python.user_code import source_location
from orchestrator.config.sections.experiment import Component
from orchestrator.errors import ConfigError, Problem
from orchestrator.task import Task

SCHEDULERS = {
    **subclasses_in(torch.optim.lr_scheduler, LRScheduler),
    **subclasses_in(torch.optim.swa_utils, LRScheduler),
}

LENGTHS = ("T_max", "total_steps", "total_iters")
"""What schedulers call their length: where it is not written it is the run's."""

RATES = {"OneCycleLR": "max_lr", "CyclicLR": "base_lr"}
"""Schedulers that set the rate themselves, whatever the optimizer's is, and what they call it. Where it is not written
it is the optimizer's."""


@dataclass(frozen=True)
class LRPhase:
    """A scheduler with all of its numbers, counted in its own steps, and its part of the schedule."""

    path: str
    kind: str
    arguments: Mapping[str, Any]
    begin: int = 0
    """Steps of the schedule after which it begins."""
    end: int | None = None
    """The last step of the schedule that it may take, unless another scheduler begins there; None is none."""
    every: int = 1
    """Steps of the schedule for each of its own."""

    @property
    def is_whole(self) -> bool:
        """Whether it acts from beginning to end and at each step."""
        return (self.begin, self.end, self.every) == (0, None, 1)

    def check(self, task: type[Task]) -> None:
        """Refuses what could not be built, before there is an optimizer; raises ConfigError."""
        if self.kind == OWN:
            own_method_with_defaults(self.arguments, task, "scheduler")
            return
        problems = [
            Problem(f"{self.path}.{key}", message)
            for key, message in self._wrong_for_torch()
            if self.kind in SCHEDULERS
        ]
        if problems:
            raise ConfigError(problems)
        check_component(self.kind, self._with_rate(1.0), LRScheduler, SCHEDULERS, NoOptimizer(), self.path)

    def _wrong_for_torch(self) -> Iterator[tuple[str, str]]:
        """What torch's own would refuse in words of its own, or with a step only: each key, and what is wrong."""
        if self.kind in ("ChainedScheduler", "SequentialLR"):
            yield "type", f"is {self.kind}, whose schedulers are a list here: each with its type, begin and end"
        if self.arguments.get("last_epoch", -1) != -1:
            yield (
                "last_epoch",
                (
                    f"is for a script's own checkpoints, got {self.arguments['last_epoch']}; a run that goes on knows"
                    " where it is"
                ),
            )
        for key in (*LENGTHS, "step_size", "step_size_up", "step_size_down"):
            count = self.arguments.get(key)
            if isinstance(count, int | float) and count <= 0:
                yield key, f"must be greater than 0, got {count}"

    def _with_rate(self, rate: Any) -> dict[str, Any]:
        return {RATES[self.kind]: rate, **self.arguments} if self.kind in RATES else dict(self.arguments)

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """The scheduler, None where the task's method gives none; raises ConfigError."""
        if self.kind == OWN:
            made = task.scheduler(optimizer, **self.arguments)
            if made is None or (callable(getattr(made, "step", None)) and not isinstance(made, type)):
                return made
            message = f"{type(task).__name__}.scheduler() gives {made!r}, and must give a scheduler, or None"
            raise ConfigError([Problem(self.path, f"{message}{source_location(task.scheduler)}")])
        cls: Callable[..., Any] = find_class(self.kind, LRScheduler, SCHEDULERS, f"{self.path}.type")
        arguments = self._with_rate([group["lr"] for group in optimizer.param_groups])
        return made_of(cls, optimizer, self.kind, arguments, self.path)


def argument_names(kind: str, task: type[Task], path: str) -> set[str]:
    """The arguments that a scheduler, which stands at `path`, takes by name."""
    if kind == OWN:
        return set(model_of_own(task, "scheduler").model_fields)
    cls: Any = find_class(kind, LRScheduler, SCHEDULERS, f"{path}.type")
    return set(signature_model(cls).model_fields)


def with_length(kind: str, arguments: dict[str, Any], task: type[Task], length: int, path: str) -> dict[str, Any]:
    """The arguments of a scheduler with its length, where that is not written."""
    names = argument_names(kind, task, path)
    if {"epochs", "steps_per_epoch"} & arguments.keys():  # OneCycleLR's other way to say its length
        names = names - {"total_steps"}
    return arguments | {name: length for name in LENGTHS if name in names and arguments.get(name) is None}


def steps_by_a_metric(scheduler: Component, path: str) -> bool:
    return scheduler.type != OWN and issubclass(
        find_class(scheduler.type, LRScheduler, SCHEDULERS, f"{path}.type"), ReduceLROnPlateau
    )


def unread_rate(optimizer: Mapping[str, Any], scheduler: Any, path: str = "scheduler") -> str | None:
    """What makes nothing read the rate of one of torch's optimizers, where it is so; its scheduler stands at `path`."""
    stages = (
        [(f"{path}.{index}", one) for index, one in enumerate(scheduler)]
        if isinstance(scheduler, list)
        else [(path, scheduler)]
    )
    set_by = [
        f"{one['type']} sets the rate to {place}.{name}"
        for place, one in stages
        if isinstance(one, dict) and (name := RATES.get(str(one.get("type")))) in one
    ]
    if not set_by or len(set_by) != len(stages) or optimizer.get("type", OWN) == OWN:
        return None
    return f"is read by nothing: {set_by[0]}"

"""A scheduler with its arguments and length, and schedulers in phases. Driver, and each worker."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.optim.lr_scheduler
import torch.optim.swa_utils
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from orchestrator.config.optim.optimizer import (
    OWN,
    NoOptimizer,
    build_component,
    check_component,
    own_method_model,
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
"""Arguments for the length of a schedule; by default the run's length."""

RATES = {"OneCycleLR": "max_lr", "CyclicLR": "base_lr"}
"""Schedulers that set the rate themselves, and the argument; by default the optimizer's rate."""


@dataclass(frozen=True)
class LRPhase:
    """A scheduler with all of its numbers, counted in its own steps, and its part of the schedule."""

    path: str
    kind: str
    arguments: Mapping[str, Any]
    begin: int = 0
    """Steps of the schedule after which it begins."""
    end: int | None = None
    """The last step of the schedule that it may take, unless another scheduler begins there; None for no end."""
    every: int = 1
    """Steps of the schedule for each of its own."""

    @property
    def is_whole(self) -> bool:
        """True if it takes every step of the schedule."""
        return (self.begin, self.end, self.every) == (0, None, 1)

    def check(self, task: type[Task]) -> None:
        """Check the scheduler before there is an optimizer; raise ConfigError."""
        if self.kind == OWN:
            own_method_with_defaults(Component.model_validate(self.arguments), task, "scheduler", self.path)
            return
        if self.kind in SCHEDULERS and (errors := list(self._argument_errors())):
            raise ConfigError([Problem(f"{self.path}.{key}", message) for key, message in errors])
        check_component(self.kind, self._with_rate(1.0), LRScheduler, SCHEDULERS, NoOptimizer(), self.path)

    def _argument_errors(self) -> Iterator[tuple[str, str]]:
        """Yield each wrong argument that torch would report unclearly, or only at a step."""
        if self.kind in ("ChainedScheduler", "SequentialLR"):
            yield "type", f"is {self.kind}; write its schedulers as a list, each with type, begin and end"
        if self.arguments.get("last_epoch", -1) != -1:
            yield "last_epoch", f"cannot be set, got {self.arguments['last_epoch']}; a resumed run knows its position"
        for key in (*LENGTHS, "step_size", "step_size_up", "step_size_down"):
            count = self.arguments.get(key)
            if isinstance(count, int | float) and count <= 0:
                yield key, f"must be greater than 0, got {count}"

    def _with_rate(self, rate: Any) -> dict[str, Any]:
        return {RATES[self.kind]: rate, **self.arguments} if self.kind in RATES else dict(self.arguments)

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Build the scheduler, or return None if the task's method does; raise ConfigError."""
        if self.kind == OWN:
            own = task.scheduler(optimizer, **self.arguments)
            if own is None or (callable(getattr(own, "step", None)) and not isinstance(own, type)):
                return own
            message = f"{type(task).__name__}.scheduler() must return a scheduler or None, got {own!r}"
            raise ConfigError([Problem(self.path, f"{message}{source_location(task.scheduler)}")])
        cls: Callable[..., Any] = find_class(self.kind, LRScheduler, SCHEDULERS, f"{self.path}.type")
        arguments = self._with_rate([group["lr"] for group in optimizer.param_groups])
        return build_component(cls, optimizer, self.kind, arguments, self.path)


def argument_names(kind: str, task: type[Task], path: str) -> set[str]:
    """Return the arguments of the scheduler at `path`."""
    if kind == OWN:
        return set(own_method_model(task, "scheduler").model_fields)
    if not kind:
        raise ConfigError([Problem(f"{path}.type", "is missing")])
    cls: Any = find_class(kind, LRScheduler, SCHEDULERS, f"{path}.type")
    return set(signature_model(cls).model_fields)


def with_length(kind: str, arguments: dict[str, Any], task: type[Task], length: int, path: str) -> dict[str, Any]:
    """Add the length of a schedule to the arguments, unless it is written."""
    names = argument_names(kind, task, path)
    if {"epochs", "steps_per_epoch"} & arguments.keys():  # OneCycleLR's other way to set its length
        names = names - {"total_steps"}
    return arguments | {name: length for name in LENGTHS if name in names and arguments.get(name) is None}


def needs_metric(scheduler: Component, path: str) -> bool:
    """Return whether a scheduler steps by a metric, as ReduceLROnPlateau does."""
    return scheduler.type not in ("", OWN) and issubclass(
        find_class(scheduler.type, LRScheduler, SCHEDULERS, f"{path}.type"), ReduceLROnPlateau
    )


def explain_unused_rate(optimizer: Component, schedulers: Component | list[Component] | None, path: str) -> str | None:
    """Return why the rate of one of torch's optimizers has no effect, if all its schedulers set the rate."""
    entries = schedulers if isinstance(schedulers, list) else [schedulers] if schedulers else []
    places = [f"{path}.{index}" for index in range(len(entries))] if isinstance(schedulers, list) else [path]
    reasons = [
        f"{entry.type} sets the rate to {place}.{RATES[entry.type]}"
        for place, entry in zip(places, entries, strict=False)
        if RATES.get(entry.type) in entry.arguments
    ]
    if not reasons or len(reasons) != len(entries) or optimizer.type in ("", OWN):
        return None
    return f"has no effect: {reasons[0]}"


class PhasedLR(LRScheduler):
    """Schedulers that begin together, or each where another ends; in a worker process.

    Gives the numbers of torch's ChainedScheduler and SequentialLR, with an interval for each scheduler. Schedulers that
    begin together multiply. One that begins later starts from the optimizer's own rate. Between two the rate stays.
    """

    def __init__(self, optimizer: Optimizer, phases: Sequence[LRPhase], build: Callable[[LRPhase], Any]) -> None:
        rates = [rate.clone() if isinstance(rate := group["lr"], Tensor) else rate for group in optimizer.param_groups]
        # A scheduler sets the rate when it is created, which only the first ones may.
        schedulers = {index: build(phase) for index, phase in enumerate(phases) if phase.begin}
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
        schedulers |= {index: build(phase) for index, phase in enumerate(phases) if not phase.begin}
        self.optimizer, self.last_epoch, self._phases = optimizer, 0, phases
        self._schedulers = [schedulers[index] for index in range(len(phases))]
        self._begins = {phase.begin for phase in phases}
        self._last_lr = [group["lr"] for group in optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Step the schedulers whose phase it is."""
        self.last_epoch += 1
        for scheduler, phase in zip(self._schedulers, self._phases, strict=True):
            since = self.last_epoch - phase.begin
            is_over = phase.end is not None and self.last_epoch + (phase.end in self._begins) > phase.end
            if phase.begin and since == 0:
                with warnings.catch_warnings():
                    # torch's own SequentialLR begins so, with what is deprecated for others
                    warnings.simplefilter("ignore")
                    scheduler.step(0)
            elif since > 0 and not is_over and since % phase.every == 0:
                scheduler.step()
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {
            "last_epoch": self.last_epoch,
            "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)

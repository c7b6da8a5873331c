"""The scheduler: torch's, one of your own, or the task's, as long as the run and after a warm-up. Checked in the driver,
built in each worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Self

import torch.optim.lr_scheduler
import torch.optim.swa_utils
from annotated_types import Gt, Lt
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, ReduceLROnPlateau, SequentialLR

from hooks import HOOKS, Hook, ParamScheduler, Rhythm
from orchestrator.config.experiment import Component
from orchestrator.config.imports import find_class
from orchestrator.config.model import Model
from orchestrator.config.optimizer import (
    OWN,
    NoOptimizer,
    brings_its_own,
    check_component,
    in_full_of_own,
    made_of,
    model_of_own,
    subclasses_in,
)
from orchestrator.config.parameters import check, model_of_signature
from orchestrator.errors import ConfigError, Problem
from orchestrator.task import Task

SCHEDULERS = {
    **subclasses_in(torch.optim.lr_scheduler, LRScheduler),
    **subclasses_in(torch.optim.swa_utils, LRScheduler),
}

LENGTHS = ("T_max", "total_steps", "total_iters")
"""What schedulers call their length: where it is not written it is the run's."""

RATES = {"OneCycleLR": "max_lr", "CyclicLR": "base_lr"}
"""Schedulers that set the rate themselves, whatever the optimizer's is, and what they call it. Where it is not written it is the
optimizer's."""

_FROM_THE_BEGINNING = (*LENGTHS, "milestones")
"""What is counted from the run's beginning, also where the scheduler begins after a warm-up."""


class WarmUp(Model):
    """The part of a run in which the rate rises to where the scheduler begins."""

    warmup: Rhythm = Rhythm(0)
    """Epochs or optimizer steps over which the rate rises in a line; 0 is none."""
    warmup_factor: Annotated[float, Gt(0), Lt(1)] = 0.001
    """The part of the rate that the warm-up begins with."""


@dataclass(frozen=True)
class Course:
    """How far a run goes, as its scheduler counts."""

    every: Rhythm
    """How often the scheduler steps."""
    whole: Rhythm
    """How long the run is."""
    steps_per_epoch: int | None = None
    """Optimizer steps in an epoch; None before there is data."""

    @classmethod
    def of(cls, hooks: Mapping[str, Hook], epochs: Any, steps: Any, steps_per_epoch: int | None = None) -> Self | None:
        """The course of a run of so many epochs or steps; None where no hook of ours steps its scheduler."""
        hook, count = stepping_hook(hooks), epochs if steps is None else steps
        if hook is None:
            return None
        # Where one of them is wrong, which is told elsewhere, the rest is checked with any.
        count = count if type(count) is int and count > 0 else sys.maxsize
        return cls(hook.every if hook.every.count else Rhythm(1), Rhythm(count, "epochs" if steps is None else "steps"), steps_per_epoch)

    def count(self, stretch: Rhythm) -> int | None:
        """How often the scheduler steps in a stretch, whose last part may be cut short; None where that cannot be told yet."""
        count, units = stretch.count, (stretch.unit, self.every.unit)
        if units[0] != units[1]:
            if self.steps_per_epoch is None:
                return None
            count = count * self.steps_per_epoch if units[1] == "steps" else -(-count // self.steps_per_epoch)
        return -(-count // self.every.count)


@dataclass(frozen=True)
class Schedule:
    """A scheduler with all of its numbers, counted in its own steps. Plain data, which a checkpoint keeps."""

    kind: str
    arguments: Mapping[str, Any]
    warmup: int = 0
    warmup_factor: float = 1.0

    @classmethod
    def of(cls, scheduler: Component, task: type[Task], course: Course | None) -> Self:
        """The schedule of a component, its lengths filled in as far as the course knows them; raises ConfigError. Without a
        course, where a hook of the user's own steps the scheduler, nothing is filled in."""
        written, names = dict(scheduler.arguments), _names(scheduler.type, task)
        ours = {key: written.pop(key) for key in WarmUp.model_fields if key in written and key not in names}
        warm = check(WarmUp, ours, "scheduler")
        message = _wrong_warm_up(ours, warm, course)
        if message:
            raise ConfigError([Problem(f"scheduler.{next(iter(ours))}", message)])
        if course is None:
            return cls(scheduler.type, written)
        if {"epochs", "steps_per_epoch"} & written.keys():  # OneCycleLR's other way to say its length
            names = names - {"total_steps"}
        begins = course.count(warm.warmup) or 0
        # Before the data is there, any length will do to check the rest.
        total = course.count(course.whole) or begins + 1
        written |= {name: total for name in LENGTHS if name in names and written.get(name) is None}
        return cls(scheduler.type, written, begins, warm.warmup_factor)._shortened()

    def _shortened(self) -> Self:
        """The same, counted from where the warm-up ends."""
        counted = {key: self.arguments[key] for key in _FROM_THE_BEGINNING if self.warmup and key in self.arguments}
        arguments = dict(self.arguments)
        for key, value in counted.items():
            values = value if isinstance(value, list) else [value]
            if not all(type(one) is int and one > self.warmup for one in values):
                message = f"counts from the run's beginning, and must be greater than the warm-up of {self.warmup}, got {value!r}"
                raise ConfigError([Problem(f"scheduler.{key}", message)])
            rest = [one - self.warmup for one in values]
            arguments[key] = rest if isinstance(value, list) else rest[0]
        return replace(self, arguments=arguments)

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Self | None:
        """A schedule as a checkpoint keeps it."""
        return cls(**record) if record else None

    def record(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return asdict(self)

    def check(self, task: type[Task]) -> None:
        """Refuses what could not be built, before there is an optimizer; raises ConfigError."""
        if self.kind == OWN:
            in_full_of_own(self.arguments, task, "scheduler")
            return
        check_component(self.kind, self._with_rate(1.0), LRScheduler, SCHEDULERS, NoOptimizer(), "scheduler")
        if self.warmup and issubclass(find_class(self.kind, LRScheduler, SCHEDULERS, "scheduler.type"), ReduceLROnPlateau):
            raise ConfigError([Problem("scheduler.warmup", f"does not go with {self.kind}, which steps where a metric is there")])

    def _with_rate(self, rate: Any) -> dict[str, Any]:
        return {RATES[self.kind]: rate, **self.arguments} if self.kind in RATES else dict(self.arguments)

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """The scheduler, None where the task's method gives none; raises ConfigError."""
        if self.kind == OWN:
            made = task.scheduler(optimizer, **self.arguments)
        else:
            cls: Callable[..., Any] = find_class(self.kind, LRScheduler, SCHEDULERS, "scheduler.type")
            arguments = self._with_rate([group["lr"] for group in optimizer.param_groups])
            made = made_of(cls, optimizer, self.kind, arguments, "scheduler")
        if made is None or not self.warmup:
            return made
        return SequentialLR(optimizer, [LinearLR(optimizer, self.warmup_factor, total_iters=self.warmup), made], [self.warmup])


def scheduler_in_full(written: Mapping[str, Any] | None, task: type[Task]) -> dict[str, Any] | None:
    """What is written of the scheduler, with its `type`: without one, the arguments of the task's own `scheduler`. Raises
    ConfigError."""
    own = brings_its_own(task, "scheduler")
    if written is None:
        return None
    if written.get("type", OWN) != OWN or not own:
        if written.get("type") == OWN:
            raise ConfigError([Problem("scheduler.type", f"is '{OWN}', and {task.__name__} has no method scheduler() of its own")])
        return dict(written)
    declared = model_of_own(task, "scheduler").model_fields
    ours = {key: value for key, value in written.items() if key in WarmUp.model_fields and key not in declared}
    lengths = [name for name in LENGTHS if name in declared and written.get(name) is None]
    theirs = {key: value for key, value in written.items() if key not in ours} | dict.fromkeys(lengths, 1)
    full = in_full_of_own(theirs, task, "scheduler")
    return {key: value for key, value in full.items() if key not in lengths} | ours


def unread_rate(optimizer: Mapping[str, Any], scheduler: Mapping[str, Any] | None) -> str | None:
    """What makes nothing read the rate of one of torch's optimizers, where it is so."""
    name = RATES.get(str((scheduler or {}).get("type")))
    if not scheduler or name not in scheduler or optimizer.get("type", OWN) == OWN:
        return None
    return f"is read by nothing: {scheduler['type']} sets the rate to scheduler.{name}"


def stepping_hook(hooks: Mapping[str, Hook]) -> ParamScheduler | None:
    """The hook that steps the scheduler."""
    return next((hook for hook in hooks.values() if isinstance(hook, ParamScheduler)), None)


def stepping_problems(scheduler: Component | None, hooks: Mapping[str, Hook]) -> list[Problem]:
    """Where there is a scheduler that nothing steps, or a pace to step none."""
    hook, others = stepping_hook(hooks), any(type(one) not in HOOKS.values() for one in hooks.values())
    if hook is None:
        message = "is stepped by nothing: the hook param_scheduler is off"
        return [Problem("scheduler", message, suggestion="leave hooks.param_scheduler on")] if scheduler and not others else []
    name = next(name for name, one in hooks.items() if one is hook)
    if scheduler is None:
        said = {"every": hook.every != ParamScheduler.every, "monitor": hook.monitor is not None}
        message = "is read by nothing: there is no scheduler to step"
        return [Problem(f"hooks.{name}.{key}", message, suggestion="write scheduler, or leave it out") for key, is_said in said.items() if is_said]
    if hook.every.count == 0:
        return [Problem(f"hooks.{name}.every", "is 0, and so nothing steps the scheduler", suggestion="write scheduler: null for none")]
    return []


def _wrong_warm_up(written: Mapping[str, Any], warm: WarmUp, course: Course | None) -> str | None:
    """What is wrong with how a warm-up is written, or with the run for it."""
    if "warmup" not in written:
        return "is read by nothing without warmup; say how long that is" if written else None
    if course is None:
        return "needs the hook param_scheduler to step the scheduler"
    if warm.warmup.unit == "steps" and course.every.unit == "epochs" and warm.warmup.count:
        return f"is {warm.warmup}, and the scheduler steps every {course.every}; write hooks.param_scheduler.every: 1 step"
    begins, total = course.count(warm.warmup), course.count(course.whole)
    if begins and total and begins >= total:
        return f"is {warm.warmup}, and the run is over after {course.whole}"
    return None


def _names(kind: str, task: type[Task]) -> set[str]:
    """The arguments that a scheduler takes by name."""
    if kind == OWN:
        return set(model_of_own(task, "scheduler").model_fields)
    cls: Any = find_class(kind, LRScheduler, SCHEDULERS, "scheduler.type")
    return set(model_of_signature(cls).model_fields)

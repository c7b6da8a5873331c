"""The schedule of a learning rate: one scheduler for the run, after a warm-up, or several, each in
its phase.

Checked in the driver, built in each worker.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

import torch.optim.lr_scheduler
import torch.optim.swa_utils
from annotated_types import Gt, Lt
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hooks import Hook, Interval, ParamScheduler
from hooks.interval import Units
from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.fields.parameters import check, make_signature_model
from orchestrator.experiment.optim.optimizer import (
    NoOptimizer,
    build_component,
    check_component,
    fill_method_defaults,
    find_subclasses,
    has_own_method,
    make_method_model,
)
from orchestrator.experiment.sections.base import Model
from orchestrator.experiment.sections.experiment import (
    FROM_TASK,
    Component,
    LRSchedulers,
    Optimization,
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
    name: cls
    for module in (torch.optim.lr_scheduler, torch.optim.swa_utils)
    for name, cls in find_subclasses(module, LRScheduler).items()
    if name not in _UNWRITABLE
}

LENGTHS = ("T_max", "total_steps", "total_iters")
"""Arguments for the length of a schedule; by default the run's length."""
_COUNTS = (*LENGTHS, "step_size", "step_size_up", "step_size_down")

RATES = {"OneCycleLR": "max_lr", "CyclicLR": "base_lr"}
"""Schedulers that set the rate themselves, and the argument; by default the optimizer's rate."""
_COUNTED_FROM_START = {*LENGTHS, "milestones"}
"""Arguments that count from the run's beginning, even where the scheduler begins after a
warm-up."""


class WarmUp(Model):
    """The part of a run in which the rate rises to where the scheduler begins."""

    warmup: Interval = Interval(0)
    """Length of the linear rise, in epochs or optimizer steps; a bare number has the unit of the
    scheduler's steps."""
    warmup_factor: Annotated[float, Gt(0), Lt(1)] = 0.001
    """Factor of the rate that the warm-up begins with."""


class PhaseBounds(Model):
    """The part of a run in which a scheduler of a list acts, and its interval."""

    begin: Interval | None = None
    """Completed epochs or optimizer steps after which it begins; by default where the one before it
    ends."""
    end: Interval | None = None
    """Completed epochs or optimizer steps after which it ends; by default where the next begins, or
    with the run."""
    every: Annotated[Interval, Units(("epochs", "steps"), ge=1)] | None = None
    """Interval of its steps; by default one optimizer step where begin or end is in steps, else one
    epoch."""

    def interval(self) -> Interval:
        in_steps = any(
            bound is not None and bound.unit == "steps" for bound in (self.begin, self.end)
        )
        return self.every or Interval(1, "steps" if in_steps else "epochs")


@dataclass(frozen=True)
class Timeline:
    """The length of a run, and when its schedulers step."""

    length: Interval
    every: Interval | None
    """Interval of the schedulers' steps; None where a custom hook steps them."""
    monitor: str | None = None
    """Metric that steps them instead."""
    steps_per_epoch: int | None = None
    """Optimizer steps in an epoch; None before there is data."""

    @classmethod
    def from_hooks(
        cls,
        hooks: Mapping[str, Hook],
        epochs: int | None,
        steps: int | None,
        steps_per_epoch: int | None = None,
    ) -> Self:
        hook = find_stepping_hook(hooks)
        length = Interval(epochs or 0) if steps is None else Interval(steps, "steps")
        if hook is None:
            return cls(length, None, steps_per_epoch=steps_per_epoch)
        return cls(
            length, hook.every if hook.every.count else Interval(1), hook.monitor, steps_per_epoch
        )

    def count(self, duration: Interval) -> int | None:
        """Return how often schedulers step in a duration, the last part of which may be cut short;
        None if unknown."""
        count, every = duration.count, self.every or Interval(1)
        if duration.unit != every.unit:
            if self.steps_per_epoch is None:
                return None
            count = (
                count * self.steps_per_epoch
                if every.unit == "steps"
                else -(-count // self.steps_per_epoch)
            )
        return -(-count // every.count)

    def count_steps_before(self, at: Interval) -> int:
        """Return the number of optimizer steps before a position, once there is data."""
        return at.count * (self.steps_per_epoch or 1) if at.unit == "epochs" else at.count

    def count_ticks(self, step: int, epoch: int, default: int) -> int:
        """Return how often schedulers step before a position: never by a metric, `default` times by
        a custom hook."""
        if self.monitor:
            return 0
        if self.every is None:
            return default
        return (step if self.every.unit == "steps" else epoch) // self.every.count


@dataclass(frozen=True)
class Schedule:
    """The rates of an optimizer over the run: one scheduler, or several with their parts of the
    run."""

    phases: "tuple[LRPhase, ...]"
    timeline: Timeline

    @classmethod
    def make(
        cls, scheduler: LRSchedulers, task: type[Task], timeline: Timeline, path: str = "scheduler"
    ) -> Self:
        """Return the schedule of an experiment's scheduler, with its lengths as far as they are
        known.

        Raises ConfigError. Lengths stay as written where a custom hook steps it.
        """
        if isinstance(scheduler, Component):
            return cls(_make_single(scheduler, task, timeline, path), timeline)
        return cls(tuple(_make_several(scheduler, task, timeline, path)), timeline)

    def record(self) -> dict[str, Any]:
        """Return plain data for a checkpoint: whatever decides the rates."""
        every, monitor = self.timeline.every, self.timeline.monitor
        return {
            "phases": [asdict(phase) for phase in self.phases],
            "every": every and str(every),
            "monitor": monitor,
        }

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Build the scheduler, or return None if the task's method does; may raise ConfigError."""
        first, *others = self.phases
        if not others and (first.begin, first.end, first.every) == (
            0,
            None,
            1,
        ):  # it takes every step
            return first.build(task, optimizer)
        return PhasedLR(optimizer, self.phases, lambda phase: phase.build(task, optimizer))


def _make_single(
    scheduler: Component, task: type[Task], timeline: Timeline, path: str
) -> "tuple[LRPhase, ...]":
    """Return the phases of a single scheduler: a warm-up if there is one, then the scheduler."""
    kind = scheduler.type
    arguments, extra_keys = _split(scheduler, task, WarmUp, path)
    warm = check(WarmUp, extra_keys, path)
    if extra_keys and "warmup" not in extra_keys:
        raise ConfigError.at(
            f"{path}.warmup_factor", "has no effect without `warmup`; set its length"
        )
    if timeline.every is None:
        if extra_keys:
            raise ConfigError.at(
                f"{path}.warmup", "needs the hook param_scheduler to step the scheduler"
            )
        return (LRPhase(path, kind, arguments),)
    warmup = warm.warmup
    if str(extra_keys.get("warmup")).strip().isdigit():
        warmup = Interval(warmup.count, timeline.every.unit)
    if warmup.count:
        _check_warmup(warmup, timeline.every, scheduler, timeline, path)
    begin = timeline.count(warmup) or 0
    arguments = with_length(
        kind, arguments, task, timeline.count(timeline.length) or begin + 1, path
    )
    if not begin:
        return (LRPhase(path, kind, arguments),)
    warmup_phase = LRPhase(
        path, "LinearLR", {"start_factor": warm.warmup_factor, "total_iters": begin}, end=begin
    )
    return warmup_phase, LRPhase(path, kind, _count_from(begin, arguments, path), begin)


def _check_warmup(
    warmup: Interval, every: Interval, scheduler: Component, timeline: Timeline, path: str
) -> None:
    """Raise ConfigError for a warm-up that the scheduler, its interval or the length of the run
    excludes."""
    if needs_metric(scheduler, path):
        raise ConfigError.at(
            f"{path}.warmup", f"cannot be combined with {scheduler.type}, which steps by a metric"
        )
    if (warmup.unit, every.unit) == ("steps", "epochs"):
        hint = "write hooks.param_scheduler.every: 1 step"
        message = f"must be in epochs, because the scheduler steps every {every}; got {warmup}"
        raise ConfigError.at(f"{path}.warmup", message, hint)
    begin, total = timeline.count(warmup), timeline.count(timeline.length)
    if begin and total and begin >= total:
        raise ConfigError.at(
            f"{path}.warmup", f"must be shorter than the run of {timeline.length}, got {warmup}"
        )


def _make_several(
    schedulers: Sequence[Component], task: type[Task], timeline: Timeline, path: str
) -> "Iterator[LRPhase]":
    """Yield the phases of a list of schedulers, which begin together, or each where another
    ends."""
    if timeline.every is None:
        raise ConfigError.at(path, "a list of schedulers needs the hook param_scheduler")
    last_end, total = 0, timeline.count(timeline.length)
    for index, (scheduler, bounds) in enumerate(
        zip(schedulers, _collect_bounds(schedulers, task, path), strict=True)
    ):
        entry_path, kind = f"{path}.{index}", scheduler.type
        arguments, _ = _split(scheduler, task, PhaseBounds, entry_path)
        begin, end = (
            timeline.count(bounds.begin or Interval(0)),
            timeline.count(bounds.end or timeline.length),
        )
        every = timeline.count(bounds.interval())
        if (
            begin is None or end is None or every is None
        ):  # without data, any length serves to check the rest
            yield LRPhase(entry_path, kind, with_length(kind, arguments, task, 1, entry_path))
            continue
        if total is not None and begin >= total:
            raise ConfigError.at(
                entry_path, f"must begin before the end at {timeline.length}, got {bounds.begin}"
            )
        if begin >= end:
            raise ConfigError.at(
                entry_path, f"begins after {bounds.begin}, but ends after {bounds.end}"
            )
        if 0 < begin < last_end:
            hint = "begin later, or together at 0"
            raise ConfigError.at(
                entry_path, f"begins after {bounds.begin}, before another has ended", hint
            )
        last_end = max(last_end, end)
        arguments = with_length(kind, arguments, task, -(-(end - begin) // every), entry_path)
        yield LRPhase(entry_path, kind, arguments, begin, end if bounds.end else None, every)


def _collect_bounds(
    schedulers: Sequence[Component], task: type[Task], path: str
) -> list[PhaseBounds]:
    """Return the bounds of a list's schedulers: each begin, and each end but the last; may raise
    ConfigError."""
    begin: Interval | None = Interval(0)
    all_bounds: list[PhaseBounds] = []
    for index, scheduler in enumerate(schedulers):
        entry_path = f"{path}.{index}"
        if needs_metric(scheduler, entry_path):
            raise ConfigError.at(
                entry_path, f"cannot be in a list: {scheduler.type} steps by a metric"
            )
        bounds = check(PhaseBounds, _split(scheduler, task, PhaseBounds, entry_path)[1], entry_path)
        begin = bounds.begin or begin
        if begin is None:
            hint = f"write {path}.{index - 1}.end, or begin: 0 to have both together"
            raise ConfigError.at(
                entry_path, "needs a begin, as the scheduler before it has no end", hint
            )
        all_bounds.append(bounds.model_copy(update={"begin": begin}))
        begin = bounds.end
    later: Interval | None = None  # start of the next one that does not begin with the run
    for index, bounds in reversed(list(enumerate(all_bounds))):
        all_bounds[index] = bounds.model_copy(update={"end": bounds.end or later})
        later = bounds.begin if bounds.begin and bounds.begin.count else later
    return all_bounds


def compute_list_interval(
    optimizations: Sequence[Optimization], task: type[Task]
) -> Interval | None:
    """Return the interval at which the hook steps a list of schedulers; None without a list. Raises
    ConfigError."""
    all_bounds = [
        bounds
        for optimization in optimizations
        if isinstance(optimization.scheduler, list)
        for bounds in _collect_bounds(optimization.scheduler, task, optimization.scheduler_path)
    ]
    intervals = [
        at for bounds in all_bounds for at in (bounds.begin, bounds.end, bounds.interval()) if at
    ]
    in_steps = any(at.unit == "steps" for at in intervals)
    return Interval(1, "steps" if in_steps else "epochs") if all_bounds else None


def _split(
    scheduler: Component, task: type[Task], extra_keys: type[Model], path: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    arguments, names = scheduler.arguments, list_argument_names(scheduler.type, task, path)
    extra = {
        key: arguments.pop(key)
        for key in extra_keys.model_fields
        if key in arguments and key not in names
    }
    return arguments, extra


def _count_from(begin: int, arguments: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the arguments, those that count from the run's beginning counted from `begin`, or
    raise ConfigError."""
    for key in _COUNTED_FROM_START & arguments.keys():
        value = arguments[key]
        values = value if isinstance(value, list) else [value]
        if not all(type(count) is int and count > begin for count in values):
            message = f"counts from the run's beginning, and must be greater than the warm-up of {begin}, got {value!r}"
            raise ConfigError.at(f"{path}.{key}", message)
        rest = [count - begin for count in values]
        arguments = {**arguments, key: rest if isinstance(value, list) else rest[0]}
    return arguments


def fill_scheduler_defaults(
    scheduler: LRSchedulers | None, task: type[Task]
) -> LRSchedulers | None:
    """Return schedulers with their `type` and defaults; without `type`, the task's own. Raises
    ConfigError."""
    if isinstance(scheduler, list):
        return [
            _with_defaults(entry, task, PhaseBounds, f"scheduler.{i}")
            for i, entry in enumerate(scheduler)
        ]
    return None if scheduler is None else _with_defaults(scheduler, task, WarmUp, "scheduler")


def _with_defaults(
    scheduler: Component, task: type[Task], extra_keys: type[Model], path: str
) -> Component:
    if scheduler.type != FROM_TASK and (scheduler.type or not has_own_method(task, "scheduler")):
        return scheduler
    arguments, extra = _split(
        scheduler.model_copy(update={"type": FROM_TASK}), task, extra_keys, path
    )
    lengths = with_length(FROM_TASK, arguments, task, 1, path).keys() - arguments.keys()
    complete = Component.model_validate(arguments | dict.fromkeys(lengths, 1))
    full = fill_method_defaults(complete, task, "scheduler", path).model_dump()
    return Component.model_validate(
        {key: value for key, value in full.items() if key not in lengths} | extra
    )


def find_stepping_hook(hooks: Mapping[str, Hook]) -> ParamScheduler | None:
    return next((hook for hook in hooks.values() if isinstance(hook, ParamScheduler)), None)


@dataclass(frozen=True)
class LRPhase:
    """A scheduler with all of its numbers, counted in its own steps, and its part of the
    schedule."""

    path: str
    kind: str
    arguments: Mapping[str, Any]
    begin: int = 0
    """Steps of the schedule after which it begins."""
    end: int | None = None
    """The last step of the schedule that it may take, unless another scheduler begins there; None
    for no end."""
    every: int = 1
    """Steps of the schedule for each of its own."""

    def check(self, task: type[Task]) -> None:
        """Check the scheduler before there is an optimizer, or raise ConfigError."""
        if self.kind == FROM_TASK:
            fill_method_defaults(
                Component.model_validate(self.arguments), task, "scheduler", self.path
            )
            return
        # Torch would report these only at a step.
        counts = (
            {key: self.arguments.get(key) for key in _COUNTS} if self.kind in SCHEDULERS else {}
        )
        wrong = {
            key: count
            for key, count in counts.items()
            if isinstance(count, int | float) and count <= 0
        }
        if wrong:
            problems = [
                Problem(f"{self.path}.{key}", f"must be greater than 0, got {wrong[key]}")
                for key in wrong
            ]
            raise ConfigError(problems)
        check_component(
            self.kind,
            self._with_rate(1.0),
            LRScheduler,
            SCHEDULERS,
            NoOptimizer(),
            self.path,
            ("type",),
        )

    def _with_rate(self, rate: Any) -> dict[str, Any]:
        return (
            {RATES[self.kind]: rate, **self.arguments}
            if self.kind in RATES
            else dict(self.arguments)
        )

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Build the scheduler, or return None if the task's method does; may raise ConfigError."""
        if self.kind == FROM_TASK:
            scheduler = task.scheduler(optimizer, **self.arguments)
            if scheduler is None or (
                callable(getattr(scheduler, "step", None)) and not isinstance(scheduler, type)
            ):
                return scheduler
            message = f"{type(task).__name__}.scheduler() must return a scheduler or None, got {scheduler!r}"
            raise ConfigError.at(self.path, f"{message}{find_source_location(task.scheduler)}")
        cls: Callable[..., Any] = find_class(
            self.kind, LRScheduler, SCHEDULERS, f"{self.path}.type"
        )
        arguments = self._with_rate([group["lr"] for group in optimizer.param_groups])
        return build_component(cls, optimizer, self.kind, arguments, self.path)


def list_argument_names(kind: str, task: type[Task], path: str) -> set[str]:
    if kind == FROM_TASK:
        return set(make_method_model(task, "scheduler").model_fields)
    if not kind:
        raise ConfigError.at(f"{path}.type", "is missing")
    if kind in _UNWRITABLE:
        raise ConfigError.at(f"{path}.type", f"{kind} {_UNWRITABLE[kind]}")
    cls: Any = find_class(kind, LRScheduler, SCHEDULERS, f"{path}.type")
    return set(make_signature_model(cls).model_fields)


def with_length(
    kind: str, arguments: dict[str, Any], task: type[Task], length: int, path: str
) -> dict[str, Any]:
    """Add the length of a schedule to the arguments, unless it is written; raise ConfigError if it
    is too short."""
    names = list_argument_names(kind, task, path)
    counts: list[Any] = [arguments.get("total_steps")]
    if {"epochs", "steps_per_epoch"} & arguments.keys():  # OneCycleLR's other way to set its length
        names = names - {"total_steps"}
        counts = [arguments.get("epochs"), arguments.get("steps_per_epoch")]
    if (
        kind == "OneCycleLR"
        and all(type(count) is int for count in counts)
        and 0 < math.prod(counts) < length
    ):
        # torch would raise in the middle of the run
        message = (
            f"must be at least {length}, the scheduler's steps in this run, got {math.prod(counts)}"
        )
        raise ConfigError.at(f"{path}.total_steps", message)
    return arguments | {
        name: length for name in LENGTHS if name in names and arguments.get(name) is None
    }


def needs_metric(scheduler: Component, path: str) -> bool:
    """Return whether a scheduler steps by a metric, as ReduceLROnPlateau does."""
    return scheduler.type not in ("", FROM_TASK) and issubclass(
        find_class(scheduler.type, LRScheduler, SCHEDULERS, f"{path}.type"), ReduceLROnPlateau
    )


class PhasedLR(LRScheduler):
    """Schedulers that begin together, or each where another ends; used in workers.

    Gives the numbers of torch's ChainedScheduler and SequentialLR, with an interval for each
    scheduler. Schedulers that begin together multiply. One that begins later starts from the
    optimizer's own rate. Between two the rate stays.
    """

    def __init__(
        self, optimizer: Optimizer, phases: Sequence[LRPhase], build: Callable[[LRPhase], Any]
    ) -> None:
        rates = [
            rate.clone() if isinstance(rate := group["lr"], Tensor) else rate
            for group in optimizer.param_groups
        ]
        # Creating a scheduler sets the rate, which only the first ones may do: create them last.
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

    def get_last_lr(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Step the schedulers that are in their phase."""
        self.last_epoch += 1
        for scheduler, phase in zip(self._schedulers, self._phases, strict=True):
            since = self.last_epoch - phase.begin
            has_ended = (
                phase.end is not None and self.last_epoch + (phase.end in self._begins) > phase.end
            )
            if phase.begin and since == 0:
                with warnings.catch_warnings():
                    # torch's SequentialLR does this too; the argument is deprecated for other
                    # callers
                    warnings.simplefilter("ignore")
                    scheduler.step(0)
            elif since > 0 and not has_ended and since % phase.every == 0:
                scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {
            "last_epoch": self.last_epoch,
            "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)

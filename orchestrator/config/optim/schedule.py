"""The schedule: a scheduler as long as the run, after a warm-up, or several of them, each in its part of the run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

from annotated_types import Gt, Lt
from torch.optim import Optimizer

from hooks import HOOKS, Hook, Interval, ParamScheduler
from orchestrator.config.optim.optimizer import OWN, has_own_method, model_of_own, own_method_with_defaults
from orchestrator.config.optim.scheduler import (
    LENGTHS,
    SCHEDULERS,
    LRPhase,
    argument_names,
    steps_by_a_metric,
    with_length,
)
from orchestrator.config.optim.staged_scheduler import StagedLR
from orchestrator.config.python.parameters import check
from orchestrator.config.sections.base import Model
from orchestrator.config.sections.experiment import Component, Optimization, Scheduler
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.task import Task

_FROM_THE_BEGINNING = {*LENGTHS, "milestones"}
"""Arguments that count from the run's beginning, even where the scheduler begins after a warm-up."""


class WarmUp(Model):
    """The part of a run in which the rate rises to where the scheduler begins."""

    warmup: Interval = Interval(0)
    """Epochs or optimizer steps over which the rate rises linearly; a bare number is in the unit in which the scheduler
    steps."""
    warmup_factor: Annotated[float, Gt(0), Lt(1)] = 0.001
    """Factor of the rate that the warm-up begins with."""


class PhaseBounds(Model):
    """The part of a run in which a scheduler of a list acts, and its pace."""

    begin: Interval | None = None
    """Completed epochs or optimizer steps after which it begins; by default where the one before it ends."""
    end: Interval | None = None
    """Completed epochs or optimizer steps after which it ends; by default where the next begins, or with the run."""
    every: Interval | None = None
    """Interval of its steps; by default one optimizer step where begin or end is in steps, else one epoch."""

    def interval(self) -> Interval:
        """Return how often it steps."""
        in_steps = any(bound is not None and bound.unit == "steps" for bound in (self.begin, self.end))
        return self.every or Interval(1, "steps" if in_steps else "epochs")


@dataclass(frozen=True)
class Timeline:
    """The length of a run, and when its schedulers step."""

    length: Interval
    every: Interval | None
    """Interval of the schedulers' steps; None where a hook of the user's own steps them."""
    monitor: str | None = None
    """Metric that steps them instead."""
    steps_per_epoch: int | None = None
    """Optimizer steps in an epoch; None before there is data."""

    @classmethod
    def of(cls, hooks: Mapping[str, Hook], epochs: Any, steps: Any, steps_per_epoch: int | None = None) -> Self:
        """Return the timeline of a run of so many epochs or steps."""
        hook, count = stepping_hook(hooks), epochs if steps is None else steps
        # Another check reports a wrong length; the rest is checked with any.
        count = count if type(count) is int and count > 0 else sys.maxsize
        length = Interval(count, "epochs" if steps is None else "steps")
        if hook is None:
            return cls(length, None, steps_per_epoch=steps_per_epoch)
        return cls(length, hook.every if hook.every.count else Interval(1), hook.monitor, steps_per_epoch)

    def count(self, duration: Interval) -> int | None:
        """Return how often schedulers step in a duration, of which the last part may be cut short; None before that is
        known."""
        count, every = duration.count, self.every or Interval(1)
        if duration.unit != every.unit:
            if self.steps_per_epoch is None:
                return None
            count = count * self.steps_per_epoch if every.unit == "steps" else -(-count // self.steps_per_epoch)
        return -(-count // every.count)

    def steps(self, at: Interval) -> int:
        """Return the number of optimizer steps before a place, once there is data."""
        return at.count * (self.steps_per_epoch or 1) if at.unit == "epochs" else at.count

    def ticks(self, step: int, epoch: int, default: int) -> int:
        """Return how often schedulers have stepped after so many steps and epochs: never where a metric steps them, and
        `default` times where a hook of the user's own does."""
        if self.monitor:
            return 0
        if self.every is None:
            return default
        return (step if self.every.unit == "steps" else epoch) // self.every.count


@dataclass(frozen=True)
class Schedule:
    """The rates of an optimizer over the run: one scheduler, or several with the parts of the run that they act in."""

    phases: tuple[LRPhase, ...]
    timeline: Timeline

    @classmethod
    def of(cls, scheduler: Scheduler, task: type[Task], timeline: Timeline, path: str = "scheduler") -> Self:
        """Return the schedule of an experiment's scheduler, its lengths filled in as far as they are known; raises
        ConfigError. Nothing is filled in where a hook of the user's own steps it."""
        if isinstance(scheduler, Component):
            return cls(_single(scheduler, task, timeline, path), timeline)
        return cls(tuple(_several(scheduler, task, timeline, path)), timeline)

    def record(self) -> dict[str, Any]:
        """Return plain data for a checkpoint: whatever decides the rates."""
        every, monitor = self.timeline.every, self.timeline.monitor
        return {"phases": [asdict(phase) for phase in self.phases], "every": every and str(every), "monitor": monitor}

    def check(self, task: type[Task]) -> None:
        """Refuse what could not be built, before there is an optimizer; raises ConfigError."""
        problems: list[Problem] = []
        for phase in self.phases:
            collect_problems(problems, phase.check, task)
        if problems:
            raise ConfigError(problems)

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Return the scheduler, None where the task's method gives none; raises ConfigError."""
        if len(self.phases) == 1 and self.phases[0].is_whole:
            return self.phases[0].build(task, optimizer)
        return StagedLR(optimizer, self.phases, lambda phase: phase.build(task, optimizer))


def _single(scheduler: Component, task: type[Task], timeline: Timeline, path: str) -> tuple[LRPhase, ...]:
    """Return the phases of one scheduler for the whole run: it, after a warm-up where there is one."""
    arguments, written = _split(scheduler, task, WarmUp, path)
    warm = check(WarmUp, written, path)
    if timeline.every is not None and str(written.get("warmup")).strip().isdigit():  # in the unit of the schedule
        warm = warm.model_copy(update={"warmup": Interval(warm.warmup.count, timeline.every.unit)})
    message = _wrong_warm_up(written, warm, timeline)
    if not message and warm.warmup.count and steps_by_a_metric(scheduler, path):
        message = f"does not go with {scheduler.type}, which steps where a metric is there"
    if message:
        raise ConfigError([Problem(f"{path}.{next(iter(written))}", message)])
    if timeline.every is None:
        return (LRPhase(path, scheduler.type, arguments),)
    begin = timeline.count(warm.warmup) or 0
    arguments = with_length(scheduler.type, arguments, task, timeline.count(timeline.length) or begin + 1, path)
    if not begin:
        return (LRPhase(path, scheduler.type, arguments),)
    rising = LRPhase(path, "LinearLR", {"start_factor": warm.warmup_factor, "total_iters": begin}, end=begin)
    return rising, LRPhase(path, scheduler.type, _counted_from(begin, arguments, path), begin)


def _several(schedulers: Sequence[Component], task: type[Task], timeline: Timeline, path: str) -> Iterator[LRPhase]:
    """Yield the phases of a list of schedulers, which begin together, or each where another ends."""
    if timeline.every is None:
        raise ConfigError([Problem(path, "is a list, which needs the hook param_scheduler to step it")])
    before, whole = 0, timeline.count(timeline.length)
    for index, (scheduler, bounds) in enumerate(zip(schedulers, _all_bounds(schedulers, task, path), strict=True)):
        place, kind = f"{path}.{index}", scheduler.type
        arguments, _ = _split(scheduler, task, PhaseBounds, place)
        begin, end = timeline.count(bounds.begin or Interval(0)), timeline.count(bounds.end or timeline.length)
        every = timeline.count(bounds.interval())
        if begin is None or end is None or every is None:  # before there is data any length will do to check the rest
            yield LRPhase(place, kind, with_length(kind, arguments, task, 1, place))
            continue
        message = None
        if whole is not None and begin >= whole:
            message = f"begins after {bounds.begin}, and the run is over after {timeline.length}"
        elif begin >= end:
            message = f"begins after {bounds.begin}, and ends after {bounds.end}"
        elif 0 < begin < before:
            rule = "schedulers follow each other, or begin together at 0"
            message = f"begins after {bounds.begin}, before another has ended; {rule}"
        if message:
            raise ConfigError([Problem(place, message)])
        before = max(before, end)
        arguments = with_length(kind, arguments, task, -(-(end - begin) // every), place)
        yield LRPhase(place, kind, arguments, begin, end if bounds.end else None, every)


def _all_bounds(schedulers: Sequence[Component], task: type[Task], path: str) -> list[PhaseBounds]:
    """Return the bounds of a list's schedulers, with each begin filled in, and each end but the last; raises
    ConfigError."""
    every_bounds: list[PhaseBounds] = []
    for index, scheduler in enumerate(schedulers):
        place = f"{path}.{index}"
        bounds = check(PhaseBounds, _split(scheduler, task, PhaseBounds, place)[1], place)
        if bounds.every is not None and not bounds.every.count:
            raise ConfigError([Problem(f"{place}.every", "is 0, and so it would never step")])
        if steps_by_a_metric(scheduler, place):
            message = f"cannot be one of a list: {scheduler.type} steps where a metric is there"
            raise ConfigError([Problem(place, message)])
        if bounds.begin is None:
            begin = every_bounds[-1].end if every_bounds else Interval(0)
            if begin is None:
                hint = f"write {path}.{index - 1}.end, or begin: 0 to have both at once"
                message = "begins where the one before it ends, which is not said"
                raise ConfigError([Problem(place, message, suggestion=hint)])
            bounds = bounds.model_copy(update={"begin": begin})
        every_bounds.append(bounds)
    begins = [bounds.begin for bounds in every_bounds]
    for index, bounds in enumerate(every_bounds):
        later = next((begin for begin in begins[index + 1 :] if begin and begin.count), None)
        if bounds.end is None and later:
            every_bounds[index] = bounds.model_copy(update={"end": later})
    return every_bounds


def interval_of(optimizations: Sequence[Optimization], task: type[Task]) -> Interval | None:
    """Return how often the hook steps schedulers of a list, so that each has its own pace; None where there is none.
    Raises ConfigError."""
    every_bounds = [
        bounds
        for optimization in optimizations
        if isinstance(optimization.scheduler, list)
        for bounds in _all_bounds(optimization.scheduler, task, optimization.scheduler_path)
    ]
    intervals = [at for bounds in every_bounds for at in (bounds.begin, bounds.end, bounds.interval()) if at]
    in_steps = any(at.unit == "steps" for at in intervals)
    return Interval(1, "steps" if in_steps else "epochs") if every_bounds else None


def _split(
    scheduler: Component, task: type[Task], ours: type[Model], path: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of a scheduler's class, and which of our keys stand beside them."""
    arguments, names = scheduler.arguments, argument_names(scheduler.type, task, path)
    taken = {key: arguments.pop(key) for key in ours.model_fields if key in arguments and key not in names}
    return arguments, taken


def _counted_from(begin: int, arguments: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the arguments, with those that count from the run's beginning counted from where the warm-up ends; raises
    ConfigError."""
    for key in _FROM_THE_BEGINNING & arguments.keys():
        value = arguments[key]
        values = value if isinstance(value, list) else [value]
        if not all(type(place) is int and place > begin for place in values):
            message = f"counts from the run's beginning, and must be greater than the warm-up of {begin}, got {value!r}"
            raise ConfigError([Problem(f"{path}.{key}", message)])
        rest = [place - begin for place in values]
        arguments = {**arguments, key: rest if isinstance(value, list) else rest[0]}
    return arguments


def scheduler_with_defaults(written: Any, task: type[Task]) -> Any:
    """What is written of the scheduler or schedulers, with their `type`: without one, the arguments of the task's own
    `scheduler`. Raises ConfigError."""
    if isinstance(written, list):
        return [
            _in_full(one, task, PhaseBounds, f"scheduler.{index}") if isinstance(one, dict) else one
            for index, one in enumerate(written)
        ]
    return None if written is None else _in_full(written, task, WarmUp, "scheduler")


def _in_full(written: Mapping[str, Any], task: type[Task], keys: type[Model], path: str) -> dict[str, Any]:
    own = has_own_method(task, "scheduler")
    if written.get("type", OWN) != OWN or not own:
        if written.get("type") == OWN:
            raise ConfigError(
                [Problem(f"{path}.type", f"is '{OWN}', and {task.__name__} has no method scheduler() of its own")]
            )
        return dict(written)
    declared = model_of_own(task, "scheduler").model_fields
    ours = {key: value for key, value in written.items() if key in keys.model_fields and key not in declared}
    lengths = [name for name in LENGTHS if name in declared and written.get(name) is None]
    theirs = {key: value for key, value in written.items() if key not in ours} | dict.fromkeys(lengths, 1)
    full = own_method_with_defaults(theirs, task, "scheduler")
    return {key: value for key, value in full.items() if key not in lengths} | ours


def stepping_hook(hooks: Mapping[str, Hook]) -> ParamScheduler | None:
    """The hook that steps the scheduler."""
    return next((hook for hook in hooks.values() if isinstance(hook, ParamScheduler)), None)


def stepping_problems(
    optimizations: Sequence[Optimization], hooks: Mapping[str, Hook], task: type[Task]
) -> list[Problem]:
    """Return the problems of a scheduler that nothing steps, of an interval that steps none, and of one that does not
    fit a list's schedulers."""
    scheduled = [optimization for optimization in optimizations if optimization.scheduler]
    hook = stepping_hook(hooks)
    if hook is None:
        message, hint = "is stepped by nothing: the hook param_scheduler is off", "leave hooks.param_scheduler on"
        others = any(type(other) not in HOOKS.values() for other in hooks.values())
        return [] if others else [Problem(one.scheduler_path, message, suggestion=hint) for one in scheduled]
    path = f"hooks.{next(name for name, other in hooks.items() if other is hook)}"
    if not scheduled:
        message, hint = "is read by nothing: there is no scheduler to step", "write scheduler, or leave it out"
        changed = {"every": hook.every != ParamScheduler.every, "monitor": hook.monitor is not None}
        return [Problem(f"{path}.{key}", message, suggestion=hint) for key, is_set in changed.items() if is_set]
    if hook.every.count == 0:
        hint = "write scheduler: null for none"
        return [Problem(f"{path}.every", "is 0, and so nothing steps the scheduler", suggestion=hint)]
    unmet = [problem for optimization in scheduled for problem in _monitor_problems(optimization, hook, path)]
    if unmet:
        return unmet
    every = collect_problems([], interval_of, optimizations, task)
    if every not in (None, hook.every):
        message = f"is {hook.every}, and schedulers of a list have each its own `every`, for which it is {every}"
        return [Problem(f"{path}.every", message, suggestion="leave it out")]
    return []


def _monitor_problems(optimization: Optimization, hook: ParamScheduler, path: str) -> list[Problem]:
    """Return the problems of a scheduler of torch's and the hook's metric: one that is missing, or has no effect."""
    scheduler, place = optimization.scheduler, optimization.scheduler_path
    if not isinstance(scheduler, Component) or scheduler.type not in SCHEDULERS:
        return []
    needs_metric = steps_by_a_metric(scheduler, place)
    if needs_metric == (hook.monitor is not None):
        return []
    if needs_metric:
        message = f"is {scheduler.type}, which steps where a metric is there, and none is named"
        return [Problem(place, message, suggestion=f"write {path}.monitor, such as monitor: val/loss")]
    message = f"is read by nothing: {scheduler.type} takes no metric, got '{hook.monitor}'"
    return [Problem(f"{path}.monitor", message)]


def _wrong_warm_up(written: Mapping[str, Any], warm: WarmUp, timeline: Timeline) -> str | None:
    """Return what is wrong with how a warm-up is written, or with the run for it."""
    if "warmup" not in written:
        return "is read by nothing without warmup; say how long that is" if written else None
    if timeline.every is None:
        return "needs the hook param_scheduler to step the scheduler"
    if warm.warmup.unit == "steps" and timeline.every.unit == "epochs" and warm.warmup.count:
        hint = "write hooks.param_scheduler.every: 1 step"
        return f"is {warm.warmup}, and the scheduler steps every {timeline.every}; {hint}"
    begins, total = timeline.count(warm.warmup), timeline.count(timeline.length)
    if begins and total and begins >= total:
        return f"is {warm.warmup}, and the run is over after {timeline.length}"
    return None

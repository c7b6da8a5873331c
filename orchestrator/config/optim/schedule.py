"""The schedule of a learning rate: one scheduler for the run, after a warm-up, or several, each for its part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Self

from annotated_types import Gt, Lt
from torch.optim import Optimizer

from hooks import HOOKS, Hook, Interval, ParamScheduler
from orchestrator.config.optim.optimizer import OWN, has_own_method, own_method_model, own_method_with_defaults
from orchestrator.config.optim.scheduler import (
    LENGTHS,
    SCHEDULERS,
    LRPhase,
    PhasedLR,
    argument_names,
    needs_metric,
    with_length,
)
from orchestrator.config.python.parameters import check
from orchestrator.config.sections.base import Model
from orchestrator.config.sections.experiment import Component, LRSchedulers, Optimization
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
    """The part of a run in which a scheduler of a list acts, and its interval."""

    begin: Interval | None = None
    """Completed epochs or optimizer steps after which it begins; by default where the one before it ends."""
    end: Interval | None = None
    """Completed epochs or optimizer steps after which it ends; by default where the next begins, or with the run."""
    every: Interval | None = None
    """Interval of its steps; by default one optimizer step where begin or end is in steps, else one epoch."""

    def interval(self) -> Interval:
        """Return the interval of its steps."""
        in_steps = any(bound is not None and bound.unit == "steps" for bound in (self.begin, self.end))
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
    def of(
        cls, hooks: Mapping[str, Hook], epochs: int | None, steps: int | None, steps_per_epoch: int | None = None
    ) -> Self:
        """Return the timeline of a run."""
        hook = stepping_hook(hooks)
        length = Interval(epochs or 0) if steps is None else Interval(steps, "steps")
        if hook is None:
            return cls(length, None, steps_per_epoch=steps_per_epoch)
        return cls(length, hook.every if hook.every.count else Interval(1), hook.monitor, steps_per_epoch)

    def count(self, duration: Interval) -> int | None:
        """Return how often schedulers step in a duration, the last part of which may be cut short; None if unknown."""
        count, every = duration.count, self.every or Interval(1)
        if duration.unit != every.unit:
            if self.steps_per_epoch is None:
                return None
            count = count * self.steps_per_epoch if every.unit == "steps" else -(-count // self.steps_per_epoch)
        return -(-count // every.count)

    def steps(self, at: Interval) -> int:
        """Return the number of optimizer steps before a position, once there is data."""
        return at.count * (self.steps_per_epoch or 1) if at.unit == "epochs" else at.count

    def ticks(self, step: int, epoch: int, default: int) -> int:
        """Return how often schedulers have stepped at a position: never by a metric, `default` times by a custom
        hook."""
        if self.monitor:
            return 0
        if self.every is None:
            return default
        return (step if self.every.unit == "steps" else epoch) // self.every.count


@dataclass(frozen=True)
class Schedule:
    """The rates of an optimizer over the run: one scheduler, or several with their parts of the run."""

    phases: tuple[LRPhase, ...]
    timeline: Timeline

    @classmethod
    def of(cls, scheduler: LRSchedulers, task: type[Task], timeline: Timeline, path: str = "scheduler") -> Self:
        """Return the schedule of an experiment's scheduler, with its lengths as far as they are known.

        Raises ConfigError. Lengths stay as written where a custom hook steps it.
        """
        if isinstance(scheduler, Component):
            return cls(_single(scheduler, task, timeline, path), timeline)
        return cls(tuple(_several(scheduler, task, timeline, path)), timeline)

    def record(self) -> dict[str, Any]:
        """Return plain data for a checkpoint: whatever decides the rates."""
        every, monitor = self.timeline.every, self.timeline.monitor
        return {"phases": [asdict(phase) for phase in self.phases], "every": every and str(every), "monitor": monitor}

    def check(self, task: type[Task]) -> None:
        """Check the schedulers before there is an optimizer; raise ConfigError."""
        problems: list[Problem] = []
        for phase in self.phases:
            collect_problems(problems, phase.check, task)
        if problems:
            raise ConfigError(problems)

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Build the scheduler, or return None if the task's method does; raise ConfigError."""
        if len(self.phases) == 1 and self.phases[0].is_whole:
            return self.phases[0].build(task, optimizer)
        return PhasedLR(optimizer, self.phases, lambda phase: phase.build(task, optimizer))


def _single(scheduler: Component, task: type[Task], timeline: Timeline, path: str) -> tuple[LRPhase, ...]:
    """Return the phases of one scheduler for the whole run: it, after a warm-up where there is one."""
    arguments, ours = _split(scheduler, task, WarmUp, path)
    warm = check(WarmUp, ours, path)
    if timeline.every is not None and str(ours.get("warmup")).strip().isdigit():  # in the unit of the schedule
        warm = warm.model_copy(update={"warmup": Interval(warm.warmup.count, timeline.every.unit)})
    message = _warm_up_error(ours, warm, timeline)
    if not message and warm.warmup.count and needs_metric(scheduler, path):
        message = f"cannot be combined with {scheduler.type}, which steps by a metric"
    if message:
        raise ConfigError([Problem(f"{path}.{next(iter(ours))}", message)])
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
            message = f"begins after {bounds.begin}, but the run ends after {timeline.length}"
        elif begin >= end:
            message = f"begins after {bounds.begin}, but ends after {bounds.end}"
        elif 0 < begin < before:
            message = f"begins after {bounds.begin}, before another has ended; begin later, or together at 0"
        if message:
            raise ConfigError([Problem(place, message)])
        before = max(before, end)
        arguments = with_length(kind, arguments, task, -(-(end - begin) // every), place)
        yield LRPhase(place, kind, arguments, begin, end if bounds.end else None, every)


def _all_bounds(schedulers: Sequence[Component], task: type[Task], path: str) -> list[PhaseBounds]:
    """Return the bounds of a list's schedulers, with each begin filled in, and each end but the last; raise
    ConfigError."""
    all_bounds: list[PhaseBounds] = []
    for index, scheduler in enumerate(schedulers):
        place = f"{path}.{index}"
        bounds = check(PhaseBounds, _split(scheduler, task, PhaseBounds, place)[1], place)
        if bounds.every is not None and not bounds.every.count:
            raise ConfigError([Problem(f"{place}.every", "must be greater than 0, got 0")])
        if needs_metric(scheduler, place):
            message = f"cannot be in a list: {scheduler.type} steps by a metric"
            raise ConfigError([Problem(place, message)])
        if bounds.begin is None:
            begin = all_bounds[-1].end if all_bounds else Interval(0)
            if begin is None:
                hint = f"write {path}.{index - 1}.end, or begin: 0 to have both at once"
                message = "needs a begin, as the scheduler before it has no end"
                raise ConfigError([Problem(place, message, suggestion=hint)])
            bounds = bounds.model_copy(update={"begin": begin})
        all_bounds.append(bounds)
    begins = [bounds.begin for bounds in all_bounds]
    for index, bounds in enumerate(all_bounds):
        later = next((begin for begin in begins[index + 1 :] if begin and begin.count), None)
        if bounds.end is None and later:
            all_bounds[index] = bounds.model_copy(update={"end": later})
    return all_bounds


def list_interval(optimizations: Sequence[Optimization], task: type[Task]) -> Interval | None:
    """Return how often the hook steps schedulers of a list, so that each can have its own interval; None without a
    list. Raises ConfigError."""
    all_bounds = [
        bounds
        for optimization in optimizations
        if isinstance(optimization.scheduler, list)
        for bounds in _all_bounds(optimization.scheduler, task, optimization.scheduler_path)
    ]
    intervals = [at for bounds in all_bounds for at in (bounds.begin, bounds.end, bounds.interval()) if at]
    in_steps = any(at.unit == "steps" for at in intervals)
    return Interval(1, "steps" if in_steps else "epochs") if all_bounds else None


def _split(
    scheduler: Component, task: type[Task], ours: type[Model], path: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    arguments, names = scheduler.arguments, argument_names(scheduler.type, task, path)
    own = {key: arguments.pop(key) for key in ours.model_fields if key in arguments and key not in names}
    return arguments, own


def _counted_from(begin: int, arguments: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the arguments, with those that count from the run's beginning counted from the end of the warm-up; raise
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


def scheduler_with_defaults(scheduler: LRSchedulers | None, task: type[Task]) -> LRSchedulers | None:
    """Return schedulers with their `type` and defaults; without `type`, the task's own. Raises ConfigError."""
    if isinstance(scheduler, list):
        return [_with_defaults(entry, task, PhaseBounds, f"scheduler.{i}") for i, entry in enumerate(scheduler)]
    return None if scheduler is None else _with_defaults(scheduler, task, WarmUp, "scheduler")


def _with_defaults(scheduler: Component, task: type[Task], ours: type[Model], path: str) -> Component:
    if not has_own_method(task, "scheduler") and scheduler.type == OWN:
        raise ConfigError([Problem(f"{path}.type", f"is '{OWN}', but {task.__name__} defines no scheduler()")])
    if scheduler.type not in ("", OWN) or not has_own_method(task, "scheduler"):
        return scheduler
    declared, arguments = own_method_model(task, "scheduler").model_fields, scheduler.arguments
    own = {key: arguments.pop(key) for key in ours.model_fields if key in arguments and key not in declared}
    lengths = [name for name in LENGTHS if name in declared and arguments.get(name) is None]
    arguments |= dict.fromkeys(lengths, 1)
    full = own_method_with_defaults(Component.model_validate(arguments), task, "scheduler", path).model_dump()
    return Component.model_validate({key: value for key, value in full.items() if key not in lengths} | own)


def stepping_hook(hooks: Mapping[str, Hook]) -> ParamScheduler | None:
    """Return the hook that steps the scheduler."""
    return next((hook for hook in hooks.values() if isinstance(hook, ParamScheduler)), None)


def is_stepped(hooks: Mapping[str, Hook]) -> bool:
    """Return whether a hook steps schedulers, or a custom hook may."""
    return stepping_hook(hooks) is not None or any(type(hook) not in HOOKS.values() for hook in hooks.values())


def stepping_problems(
    optimizations: Sequence[Optimization], hooks: Mapping[str, Hook], task: type[Task]
) -> list[Problem]:
    """Return the problems of a scheduler that nothing steps, and of a hook that has none to step or the wrong
    interval."""
    scheduled = [optimization for optimization in optimizations if optimization.scheduler]
    hook = stepping_hook(hooks)
    if not is_stepped(hooks):
        message, hint = "has no effect: the hook param_scheduler, which steps it, is off", "turn the hook on"
        return [Problem(optimization.scheduler_path, message, suggestion=hint) for optimization in scheduled]
    if hook is None:
        return []
    path = f"hooks.{next(name for name, other in hooks.items() if other is hook)}"
    if not scheduled:
        message, hint = "has no effect without a scheduler", "set scheduler, or remove it"
        changed = {"every": hook.every != ParamScheduler.every, "monitor": hook.monitor is not None}
        return [Problem(f"{path}.{key}", message, suggestion=hint) for key, is_set in changed.items() if is_set]
    if hook.every.count == 0:
        hint = "write scheduler: null for no scheduler"
        return [Problem(f"{path}.every", "is 0, so nothing steps the scheduler", suggestion=hint)]
    unmet = [problem for optimization in scheduled for problem in _monitor_problems(optimization, hook, path)]
    if unmet:
        return unmet
    every = collect_problems([], list_interval, optimizations, task)
    if every not in (None, hook.every):
        message = f"must be {every} for a list of schedulers, which have their own `every`; got {hook.every}"
        return [Problem(f"{path}.every", message, suggestion="remove it")]
    return []


def _monitor_problems(optimization: Optimization, hook: ParamScheduler, path: str) -> list[Problem]:
    """Return the problem of one of torch's schedulers whose metric is missing, or of a metric without effect."""
    scheduler, place = optimization.scheduler, optimization.scheduler_path
    if not isinstance(scheduler, Component) or scheduler.type not in SCHEDULERS:
        return []
    if needs_metric(scheduler, place) == (hook.monitor is not None):
        return []
    if hook.monitor is None:
        hint = f"write {path}.monitor, such as monitor: val/loss"
        return [Problem(place, f"is {scheduler.type}, which needs a metric to step by", suggestion=hint)]
    return [Problem(f"{path}.monitor", f"has no effect: {scheduler.type} takes no metric, got '{hook.monitor}'")]


def _warm_up_error(keys: Mapping[str, Any], warm: WarmUp, timeline: Timeline) -> str | None:
    """Return the error of a warm-up's keys, or of the run's length for it."""
    if "warmup" not in keys:
        return "has no effect without `warmup`; set its length" if keys else None
    if timeline.every is None:
        return "needs the hook param_scheduler to step the scheduler"
    if warm.warmup.unit == "steps" and timeline.every.unit == "epochs" and warm.warmup.count:
        hint = "write hooks.param_scheduler.every: 1 step"
        return f"is {warm.warmup}, but the scheduler steps every {timeline.every}; {hint}"
    begins, total = timeline.count(warm.warmup), timeline.count(timeline.length)
    if begins and total and begins >= total:
        return f"is {warm.warmup}, but the run ends after {timeline.length}"
    return None

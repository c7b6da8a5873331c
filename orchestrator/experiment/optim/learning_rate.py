"""The learning rate over a run: one scheduler, after a warm-up, or several, each in its phase.

`Schedule.make` counts the phases in steps of the schedule, before and after there is data.
`Schedule.build` makes torch's schedulers of them, which a hook steps in each worker.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hooks import Hook, Interval, ParamScheduler
from hooks.position import Position
from orchestrator.errors import ConfigError, collect_problems
from orchestrator.experiment.fields.parameters import check
from orchestrator.experiment.optim.component import Component, Optimization
from orchestrator.experiment.optim.scheduler import (
    LRPhase,
    PhaseBounds,
    WarmUp,
    WarmUpInSteps,
    add_length,
    count_from,
    needs_metric,
    split_arguments,
)
from orchestrator.task import Task


def find_stepping_hook(hooks: Mapping[str, Hook]) -> ParamScheduler | None:
    return next((hook for hook in hooks.values() if isinstance(hook, ParamScheduler)), None)


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
        length = Interval(epochs or 0) if steps is None else Interval(steps, "steps")
        hook = find_stepping_hook(hooks)
        if hook is None:
            return cls(length, None, steps_per_epoch=steps_per_epoch)
        every = hook.every if hook.every.count else Interval(1)
        return cls(length, every, hook.monitor, steps_per_epoch)

    def count(self, duration: Interval) -> int | None:
        """Return how often schedulers step in a duration; None if that is unknown.

        The last part of the duration may be cut short.
        """
        every = self.every or Interval(1)
        if duration.unit != every.unit and self.steps_per_epoch is None:
            return None
        return _divide_up(self.count_steps(duration), self.count_steps(every))

    def count_steps(self, duration: Interval) -> int:
        """Return the number of optimizer steps in a duration, once there is data."""
        if duration.unit == "steps":
            return duration.count
        return duration.count * (self.steps_per_epoch or 1)


def _divide_up(count: int, divisor: int) -> int:
    return -(-count // divisor)


@dataclass(frozen=True)
class Schedule:
    """The rates of an optimizer over the run: the phases of its schedulers, none without one."""

    phases: tuple[LRPhase, ...]
    timeline: Timeline

    @classmethod
    def make(cls, optimization: Optimization, task: type[Task], timeline: Timeline) -> Self:
        """Return the schedule of an optimizer, with its lengths as far as they are known.

        Raises ConfigError. Lengths stay as written where a custom hook steps it.
        """
        scheduler = optimization.scheduler
        path = optimization.scheduler_path
        if scheduler is None:
            return cls((), timeline)
        if isinstance(scheduler, Component):
            return cls(tuple(_make_single(scheduler, task, timeline, path)), timeline)
        return cls(tuple(_make_several(scheduler, task, timeline, path)), timeline)

    def record(self) -> dict[str, Any] | None:
        """Return plain data for a checkpoint: whatever decides the rates."""
        if not self.phases:
            return None
        every = self.timeline.every
        return {
            "phases": [asdict(phase) for phase in self.phases],
            "every": every and str(every),
            "monitor": self.timeline.monitor,
        }

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Build the scheduler, if there is one and the task's method returns it.

        Raises ConfigError.
        """
        if not self.phases:
            return None
        first = self.phases[0]
        takes_every_step = (first.begin, first.last, first.every) == (0, None, 1)
        if len(self.phases) == 1 and takes_every_step:
            return first.build(task, optimizer)
        return PhasedLR(optimizer, self.phases, task)

    def replay(self, scheduler: Any, position: Position, default: int) -> None:
        """Advance a new scheduler to a position, as if the optimizer had always trained with it.

        A scheduler that steps on a metric starts over. A scheduler that a user's hook steps, at
        whatever times, takes `default` steps.
        """
        every = self.timeline.every
        if scheduler is None or self.timeline.monitor:
            return
        count = default
        if every is not None:
            count = (position.step if every.unit == "steps" else position.epoch) // every.count
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for _ in range(count):
                scheduler.step()


class PhasedLR(LRScheduler):
    """Schedulers that begin together, or each where another ends; used in workers.

    Gives the numbers of torch's ChainedScheduler and SequentialLR, with an interval for each
    scheduler. Schedulers that begin together multiply. One that begins later starts from the
    optimizer's own rate. Between two the rate stays.
    """

    def __init__(self, optimizer: Optimizer, phases: Sequence[LRPhase], task: Task) -> None:
        rates = deepcopy([group["lr"] for group in optimizer.param_groups])
        schedulers = [_build(phase, task, optimizer) if phase.begin else None for phase in phases]
        # Creating a scheduler sets the rate, which only those that begin with the run may do.
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for index, phase in enumerate(phases):
            if not phase.begin:
                schedulers[index] = _build(phase, task, optimizer)

        self.optimizer = optimizer
        self.last_epoch = 0
        self._phases = phases
        self._schedulers: list[Any] = schedulers

    def get_last_lr(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Step the schedulers that are in their phase."""
        self.last_epoch += 1
        for scheduler, phase in zip(self._schedulers, self._phases, strict=True):
            since = self.last_epoch - phase.begin
            is_over = phase.last is not None and self.last_epoch > phase.last
            if phase.begin and since == 0:
                with warnings.catch_warnings():
                    # torch's SequentialLR does this too; the argument is deprecated for other
                    # callers
                    warnings.simplefilter("ignore")
                    scheduler.step(0)
            elif since > 0 and not is_over and since % phase.every == 0:
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


def _build(phase: LRPhase, task: Task, optimizer: Optimizer) -> Any:
    built = phase.build(task, optimizer)
    if built is None:
        method = f"{type(task).__name__}.scheduler()"
        raise ConfigError.at(
            phase.path,
            f"needs a scheduler beside a warm-up or in a list, but {method} returned None",
        )
    return built


# The phases


def _make_single(
    scheduler: Component, task: type[Task], timeline: Timeline, path: str
) -> Iterator[LRPhase]:
    """Yield the phases of a single scheduler: a warm-up if there is one, then the scheduler."""
    kind = scheduler.type
    arguments, extra = split_arguments(scheduler, task, WarmUp, path)
    steps_with_optimizer = timeline.every is not None and timeline.every.unit == "steps"
    warm = check(WarmUpInSteps if steps_with_optimizer else WarmUp, extra, path)
    if extra and "warmup" not in extra:
        raise ConfigError.at(
            f"{path}.warmup_factor", "has no effect without `warmup`; set its length"
        )
    if timeline.every is None:
        if extra:
            raise ConfigError.at(
                f"{path}.warmup", "needs the hook param_scheduler to step the scheduler"
            )
        yield LRPhase(path, kind, arguments)
        return

    warmup = warm.warmup
    if warmup.count:
        _check_warmup(warmup, scheduler, timeline, path)
    begin = timeline.count(warmup) or 0
    total = timeline.count(timeline.length) or begin + 1
    arguments = add_length(kind, arguments, task, total, path)
    if begin:
        rise = {"start_factor": warm.warmup_factor, "total_iters": begin}
        yield LRPhase(path, "LinearLR", rise, last=begin - 1)
        arguments = count_from(begin, arguments, path)
    yield LRPhase(path, kind, arguments, begin)


def _check_warmup(
    warmup: Interval, scheduler: Component, timeline: Timeline, scheduler_path: str
) -> None:
    """Raise ConfigError for a warm-up that does not fit the scheduler or the run."""
    path = f"{scheduler_path}.warmup"
    if needs_metric(scheduler, scheduler_path):
        raise ConfigError.at(
            path, f"cannot be combined with {scheduler.type}, which steps by a metric"
        )
    every = timeline.every or Interval(1)
    if (warmup.unit, every.unit) == ("steps", "epochs"):
        raise ConfigError.at(
            path,
            f"must be in epochs, because the scheduler steps every {every}; got {warmup}",
            "write hooks.param_scheduler.every: 1 step",
        )
    begin = timeline.count(warmup)
    total = timeline.count(timeline.length)
    if begin and total and begin >= total:
        raise ConfigError.at(
            path, f"must be shorter than the run of {timeline.length}, got {warmup}"
        )


def _make_several(
    schedulers: Sequence[Component], task: type[Task], timeline: Timeline, path: str
) -> Iterator[LRPhase]:
    """Yield the phases of a list of schedulers, which begin together or one after another."""
    if timeline.every is None:
        raise ConfigError.at(path, "a list of schedulers needs the hook param_scheduler")
    last_end = 0
    all_bounds = _collect_bounds(schedulers, task, path)
    begins = [timeline.count(bounds.begin or Interval(0)) for bounds in all_bounds]
    for index, (scheduler, bounds) in enumerate(zip(schedulers, all_bounds, strict=True)):
        entry_path = f"{path}.{index}"
        arguments, _ = split_arguments(scheduler, task, PhaseBounds, entry_path)
        begin = begins[index]
        end = timeline.count(bounds.end or timeline.length)
        every = timeline.count(bounds.interval())
        if begin is None or end is None or every is None:
            # Without data, any length serves to check the rest.
            arguments = add_length(scheduler.type, arguments, task, 1, entry_path)
            yield LRPhase(entry_path, scheduler.type, arguments)
            continue

        _check_order(bounds, begin, end, last_end, timeline, entry_path)
        last_end = max(last_end, end)
        length = _divide_up(end - begin, every)
        arguments = add_length(scheduler.type, arguments, task, length, entry_path)
        last = None
        if bounds.end:
            is_followed = end in begins  # by a scheduler that takes the last step
            last = end - 1 if is_followed else end
        yield LRPhase(entry_path, scheduler.type, arguments, begin, last, every)


def _check_order(
    bounds: PhaseBounds, begin: int, end: int, last_end: int, timeline: Timeline, path: str
) -> None:
    """Raise ConfigError for a phase outside of the run, or one that begins within another."""
    total = timeline.count(timeline.length)
    if total is not None and begin >= total:
        raise ConfigError.at(
            path, f"must begin before the end at {timeline.length}, got {bounds.begin}"
        )
    if begin >= end:
        raise ConfigError.at(path, f"begins after {bounds.begin}, but ends after {bounds.end}")
    if 0 < begin < last_end:
        raise ConfigError.at(
            path,
            f"begins after {bounds.begin}, before another has ended",
            "begin later, or together at 0",
        )


def _collect_bounds(
    schedulers: Sequence[Component], task: type[Task], path: str
) -> list[PhaseBounds]:
    """Return the bounds of a list's schedulers: each begin, and each end but the last.

    Raises ConfigError.
    """
    begin: Interval | None = Interval(0)
    written: list[PhaseBounds] = []
    for index, scheduler in enumerate(schedulers):
        entry_path = f"{path}.{index}"
        if needs_metric(scheduler, entry_path):
            raise ConfigError.at(
                entry_path, f"cannot be in a list: {scheduler.type} steps by a metric"
            )
        _, extra = split_arguments(scheduler, task, PhaseBounds, entry_path)
        bounds = check(PhaseBounds, extra, entry_path)
        begin = bounds.begin or begin
        if begin is None:
            raise ConfigError.at(
                entry_path,
                "needs a begin, as the scheduler before it has no end",
                f"write {path}.{index - 1}.end, or begin: 0 to have both together",
            )
        written.append(bounds.model_copy(update={"begin": begin}))
        begin = bounds.end

    all_bounds = []
    for index, bounds in enumerate(written):
        following = (later.begin for later in written[index + 1 :])
        next_begin = next((begin for begin in following if begin and begin.count), None)
        all_bounds.append(bounds.model_copy(update={"end": bounds.end or next_begin}))
    return all_bounds


def find_list_interval(optimizations: Sequence[Optimization], task: type[Task]) -> Interval | None:
    """Return the interval at which the hook steps a list of schedulers; None without a valid one."""
    units: set[str] = set()
    for optimization in optimizations:
        scheduler = optimization.scheduler
        if isinstance(scheduler, list):
            path = optimization.scheduler_path
            for bounds in collect_problems([], _collect_bounds, scheduler, task, path) or ():
                intervals = (bounds.begin, bounds.end, bounds.interval())
                units.update(at.unit for at in intervals if at)
    if not units:
        return None
    return Interval(1, "steps" if "steps" in units else "epochs")

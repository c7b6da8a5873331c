"""The learning rate over a run: one scheduler, after a warm-up, or several, each in its phase.

`Schedule.make` counts the phases in steps of the schedule, before and after there is data.
`Schedule.build` makes torch's schedulers of them, which `phases.PhasedLR` steps in each worker.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch.optim import Optimizer

from hooks import Interval
from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.parameters import check
from orchestrator.experiment.optim.component import (
    Component,
    LRSchedulers,
    Optimization,
    PhaseBounds,
    WarmUp,
)
from orchestrator.experiment.optim.learning_rate.keys import split_arguments
from orchestrator.experiment.optim.learning_rate.phases import LRPhase, PhasedLR
from orchestrator.experiment.optim.learning_rate.scheduler import (
    add_length,
    count_from,
    needs_metric,
)
from orchestrator.experiment.optim.learning_rate.timeline import Timeline, divide_up
from orchestrator.task import Task


@dataclass(frozen=True)
class Schedule:
    """The rates of an optimizer over the run: the phases of one scheduler or of several."""

    phases: tuple[LRPhase, ...]
    timeline: Timeline

    @classmethod
    def make(
        cls, scheduler: LRSchedulers, task: type[Task], timeline: Timeline, path: str = "scheduler"
    ) -> Self:
        """Return the schedule of a scheduler, with its lengths as far as they are known.

        Raises ConfigError. Lengths stay as written where a custom hook steps it.
        """
        if isinstance(scheduler, Component):
            phases = _make_single(scheduler, task, timeline, path)
        else:
            phases = _make_several(scheduler, task, timeline, path)
        return cls(tuple(phases), timeline)

    def record(self) -> dict[str, Any]:
        """Return plain data for a checkpoint: whatever decides the rates."""
        every = self.timeline.every
        return {
            "phases": [asdict(phase) for phase in self.phases],
            "every": every and str(every),
            "monitor": self.timeline.monitor,
        }

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Build the scheduler, or return None if the task's method does; may raise ConfigError."""
        first = self.phases[0]
        takes_every_step = (first.begin, first.end, first.every) == (0, None, 1)
        if len(self.phases) == 1 and takes_every_step:
            return first.build(task, optimizer)
        return PhasedLR(optimizer, self.phases, lambda phase: phase.build(task, optimizer))


def _make_single(
    scheduler: Component, task: type[Task], timeline: Timeline, path: str
) -> Iterator[LRPhase]:
    """Yield the phases of a single scheduler: a warm-up if there is one, then the scheduler."""
    kind = scheduler.type
    arguments, extra = split_arguments(scheduler, task, WarmUp, path)
    warm = check(WarmUp, extra, path)
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
    if str(extra.get("warmup")).strip().isdigit():
        warmup = Interval(warmup.count, timeline.every.unit)
    if warmup.count:
        _check_warmup(warmup, scheduler, timeline, path)
    begin = timeline.count(warmup) or 0
    total = timeline.count(timeline.length) or begin + 1
    arguments = add_length(kind, arguments, task, total, path)
    if begin:
        rise = {"start_factor": warm.warmup_factor, "total_iters": begin}
        yield LRPhase(path, "LinearLR", rise, end=begin)
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
    for index, (scheduler, bounds) in enumerate(zip(schedulers, all_bounds, strict=True)):
        entry_path = f"{path}.{index}"
        arguments, _ = split_arguments(scheduler, task, PhaseBounds, entry_path)
        begin = timeline.count(bounds.begin or Interval(0))
        end = timeline.count(bounds.end or timeline.length)
        every = timeline.count(bounds.interval())
        length = 1  # without data, any length serves to check the rest
        if begin is None or end is None or every is None:
            arguments = add_length(scheduler.type, arguments, task, length, entry_path)
            yield LRPhase(entry_path, scheduler.type, arguments)
            continue

        _check_order(bounds, begin, end, last_end, timeline, entry_path)
        last_end = max(last_end, end)
        length = divide_up(end - begin, every)
        arguments = add_length(scheduler.type, arguments, task, length, entry_path)
        final = end if bounds.end else None
        yield LRPhase(entry_path, scheduler.type, arguments, begin, final, every)


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
    all_bounds: list[PhaseBounds] = []
    for index, scheduler in enumerate(schedulers):
        entry_path = f"{path}.{index}"
        if needs_metric(scheduler, entry_path):
            raise ConfigError.at(
                entry_path, f"cannot be in a list: {scheduler.type} steps by a metric"
            )
        bounds = check(
            PhaseBounds, split_arguments(scheduler, task, PhaseBounds, entry_path)[1], entry_path
        )
        begin = bounds.begin or begin
        if begin is None:
            raise ConfigError.at(
                entry_path,
                "needs a begin, as the scheduler before it has no end",
                f"write {path}.{index - 1}.end, or begin: 0 to have both together",
            )
        all_bounds.append(bounds.model_copy(update={"begin": begin}))
        begin = bounds.end

    later: Interval | None = None  # start of the next one that does not begin with the run
    for index, bounds in reversed(list(enumerate(all_bounds))):
        all_bounds[index] = bounds.model_copy(update={"end": bounds.end or later})
        if bounds.begin and bounds.begin.count:
            later = bounds.begin
    return all_bounds


def compute_list_interval(
    optimizations: Sequence[Optimization], task: type[Task]
) -> Interval | None:
    """Return the interval at which the hook steps a list of schedulers; None without a list.

    Raises ConfigError.
    """
    units: set[str] = set()
    for optimization in optimizations:
        if isinstance(optimization.scheduler, list):
            path = optimization.scheduler_path
            for bounds in _collect_bounds(optimization.scheduler, task, path):
                ends = (bounds.begin, bounds.end, bounds.interval())
                units.update(at.unit for at in ends if at)
    if not units:
        return None
    return Interval(1, "steps" if "steps" in units else "epochs")

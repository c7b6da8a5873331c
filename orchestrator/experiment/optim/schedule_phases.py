"""The phases of a schedule, from its schedulers as written: a warm-up and one scheduler, or a list."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hooks import Interval
from orchestrator.errors import ConfigError, collect_problems
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.optim.component import Component, Optimization
from orchestrator.experiment.optim.lr_phase import LRPhase
from orchestrator.experiment.optim.scheduler import needs_metric, split_arguments
from orchestrator.experiment.optim.scheduler_keys import (
    PhaseBounds,
    WarmUp,
    WarmUpInSteps,
    choose_interval,
)
from orchestrator.experiment.optim.step_counts import add_length, count_from
from orchestrator.experiment.optim.timeline import Timeline, divide_up
from orchestrator.task import Task


def make_phases(
    optimization: Optimization, task: type[Task], timeline: Timeline
) -> Iterator[LRPhase]:
    """Yield the phases of an optimizer's schedulers; none without a scheduler.

    Raises ConfigError.
    """
    scheduler = optimization.scheduler
    path = optimization.scheduler_path
    if isinstance(scheduler, Component):
        yield from _make_single(scheduler, task, timeline, path)
    elif scheduler is not None:
        yield from _make_several(scheduler, task, timeline, path)


def _make_single(
    scheduler: Component, task: type[Task], timeline: Timeline, path: str
) -> Iterator[LRPhase]:
    """Yield the phases of a single scheduler: a warm-up if there is one, then the scheduler."""
    kind = scheduler.type
    arguments, extra = split_arguments(scheduler, task, WarmUp, path)
    warm = _read_warmup(extra, timeline, path)
    if timeline.every is None:
        yield LRPhase(path, kind, arguments)
        return

    if warm.warmup.count:
        _check_warmup(warm.warmup, scheduler, timeline, path)
    begin = timeline.count(warm.warmup) or 0
    total = timeline.count(timeline.length) or begin + 1
    arguments = add_length(kind, arguments, task, total, path)
    if begin:
        rise = {"start_factor": warm.warmup_factor, "total_iters": begin}
        yield LRPhase(path, "LinearLR", rise, last=begin - 1)
        LRPhase(path, kind, arguments).check(task)  # as written, so that errors have these values
        arguments = count_from(begin, arguments, path)
    yield LRPhase(path, kind, arguments, begin)


def _read_warmup(keys: Mapping[str, Any], timeline: Timeline, path: str) -> WarmUp:
    """Return the warm-up that the keys beside a scheduler's arguments describe.

    Raises ConfigError.
    """
    steps_with_optimizer = timeline.every is not None and timeline.every.unit == "steps"
    model = WarmUpInSteps if steps_with_optimizer else WarmUp
    warm = validate(model, keys, path)
    if keys and "warmup" not in keys:
        raise ConfigError.at(
            f"{path}.warmup_factor", "has no effect without `warmup`; set its length"
        )
    if keys and timeline.every is None:
        raise ConfigError.at(
            f"{path}.warmup", "needs the hook param_scheduler to step the scheduler"
        )
    return warm


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


@dataclass(frozen=True)
class _Span:
    """When a scheduler of a list acts, counted in the hook's steps."""

    begin: int
    end: int
    every: int

    @property
    def length(self) -> int:
        """Number of times that the scheduler steps."""
        return divide_up(self.end - self.begin, self.every)

    def contains(self, step: int) -> bool:
        return self.begin <= step < self.end


def _make_several(
    schedulers: Sequence[Component], task: type[Task], timeline: Timeline, path: str
) -> Iterator[LRPhase]:
    """Yield the phases of a list of schedulers, which begin together or one after another."""
    if timeline.every is None:
        raise ConfigError.at(path, "a list of schedulers needs the hook param_scheduler")
    all_bounds = _collect_bounds(schedulers, task, path)
    spans = [_measure(bounds, timeline) for bounds in all_bounds]
    _check_spans(spans, all_bounds, timeline, path)
    begins = {span.begin for span in spans if span}
    for index, (scheduler, bounds, span) in enumerate(
        zip(schedulers, all_bounds, spans, strict=True)
    ):
        entry_path = f"{path}.{index}"
        arguments, _ = split_arguments(scheduler, task, PhaseBounds, entry_path)
        # Without data, any length serves to check the rest.
        length = span.length if span else 1
        arguments = add_length(scheduler.type, arguments, task, length, entry_path)
        if span is None:
            yield LRPhase(entry_path, scheduler.type, arguments)
            continue

        last = None
        if bounds.end:
            is_followed = span.end in begins  # by a scheduler that takes the last step
            last = span.end - 1 if is_followed else span.end
        yield LRPhase(entry_path, scheduler.type, arguments, span.begin, last, span.every)


def _measure(bounds: PhaseBounds, timeline: Timeline) -> _Span | None:
    """Count the bounds of a scheduler in steps; None if that needs data that is not there."""
    begin = timeline.count(bounds.begin or Interval(0))
    end = timeline.count(bounds.end or timeline.length)
    every = timeline.count(bounds.interval)
    if begin is None or end is None or every is None:
        return None
    return _Span(begin, end, every)


def _check_spans(
    spans: Sequence[_Span | None],
    all_bounds: Sequence[PhaseBounds],
    timeline: Timeline,
    path: str,
) -> None:
    """Raise ConfigError for a scheduler outside of the run, or one that begins within another."""
    total = timeline.count(timeline.length)
    measured = [span for span in spans if span]
    for index, (span, bounds) in enumerate(zip(spans, all_bounds, strict=True)):
        if span is None:
            continue
        entry_path = f"{path}.{index}"
        if total is not None and span.begin >= total:
            raise ConfigError.at(
                entry_path, f"must begin before the end at {timeline.length}, got {bounds.begin}"
            )
        if span.begin >= span.end:
            raise ConfigError.at(
                entry_path, f"begins after {bounds.begin}, but ends after {bounds.end}"
            )
        if span.begin and any(
            other.contains(span.begin) for other in measured if other is not span
        ):
            raise ConfigError.at(
                entry_path,
                f"begins after {bounds.begin}, before another has ended",
                "begin later, or together at 0",
            )


def _collect_bounds(
    schedulers: Sequence[Component], task: type[Task], path: str
) -> list[PhaseBounds]:
    """Return the bounds of a list's schedulers: each begin, and each end but the last.

    Raises ConfigError.
    """
    bounds_with_begins: list[PhaseBounds] = []
    begin: Interval | None = Interval(0)
    for index, scheduler in enumerate(schedulers):
        written = _read_bounds(scheduler, task, f"{path}.{index}")
        begin = written.begin or begin
        if begin is None:
            raise ConfigError.at(
                f"{path}.{index}",
                "needs a begin, as the scheduler before it has no end",
                f"write {path}.{index - 1}.end, or begin: 0 to have both together",
            )
        bounds_with_begins.append(written.model_copy(update={"begin": begin}))
        begin = written.end
    return _fill_ends(bounds_with_begins)


def _read_bounds(scheduler: Component, task: type[Task], path: str) -> PhaseBounds:
    """Return the bounds of a scheduler as written.

    Raises ConfigError.
    """
    if needs_metric(scheduler, path):
        raise ConfigError.at(path, f"cannot be in a list: {scheduler.type} steps by a metric")
    _, extra = split_arguments(scheduler, task, PhaseBounds, path)
    return validate(PhaseBounds, extra, path)


def _fill_ends(all_bounds: Sequence[PhaseBounds]) -> list[PhaseBounds]:
    """End each scheduler without an end where the next one begins that is not there from the
    start."""
    filled: list[PhaseBounds] = []
    next_begin: Interval | None = None
    for bounds in reversed(all_bounds):
        filled.append(bounds.model_copy(update={"end": bounds.end or next_begin}))
        if bounds.begin and bounds.begin.count:
            next_begin = bounds.begin
    return filled[::-1]


def find_list_interval(optimizations: Sequence[Optimization], task: type[Task]) -> Interval | None:
    """Return the interval at which the hook steps a list of schedulers; None without a valid one."""
    durations: list[Interval] = []
    for optimization in optimizations:
        scheduler = optimization.scheduler
        if isinstance(scheduler, list):
            path = optimization.scheduler_path
            for bounds in collect_problems([], _collect_bounds, scheduler, task, path) or ():
                written = (bounds.begin, bounds.end, bounds.interval)
                durations += [duration for duration in written if duration]
    return choose_interval(durations) if durations else None

"""A list of schedulers, each in its part of the run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hooks import Interval
from orchestrator.errors import ConfigError, collect_problems
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.optim.lr_phase import LRPhase
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.scheduler import needs_metric, split_arguments
from orchestrator.experiment.optim.scheduler_keys import PhaseBounds, choose_interval
from orchestrator.experiment.optim.step_counts import add_length
from orchestrator.experiment.optim.timeline import Timeline, divide_up
from orchestrator.task import Task


@dataclass(frozen=True)
class _Entry:
    """A scheduler of a list."""

    path: str
    """Its dotted path."""
    kind: str
    """Its `type`."""
    arguments: Mapping[str, Any]
    """Its own arguments."""
    bounds: PhaseBounds
    """Its part of the run."""

    @classmethod
    def read(cls, scheduler: Component, task: type[Task], path: str) -> "_Entry":
        """Return a scheduler with its bounds as written, or raise ConfigError."""
        if needs_metric(scheduler, path):
            raise ConfigError.at(path, f"cannot be in a list: {scheduler.type} steps by a metric")
        arguments, keys = split_arguments(scheduler, task, PhaseBounds, path)
        return cls(path, scheduler.type, arguments, validate(PhaseBounds, keys, path))

    def between(self, begin: Interval | None, end: Interval | None) -> "_Entry":
        """Return the scheduler with these bounds."""
        bounds = self.bounds.model_copy(update={"begin": begin, "end": end})
        return replace(self, bounds=bounds)


def _read_entries(schedulers: Sequence[Component], task: type[Task], path: str) -> list[_Entry]:
    """Return the schedulers of a list, with each begin, and each end but the last.

    Raises ConfigError.
    """
    entries: list[_Entry] = []
    begin: Interval | None = Interval(0)
    for index, scheduler in enumerate(schedulers):
        entry = _Entry.read(scheduler, task, f"{path}.{index}")
        begin = entry.bounds.begin or begin
        if begin is None:
            raise ConfigError.at(
                entry.path,
                "needs a begin, as the scheduler before it has no end",
                f"write {entries[-1].path}.end, or begin: 0 to have both together",
            )
        entries.append(entry.between(begin, entry.bounds.end))
        begin = entry.bounds.end
    return _fill_ends(entries)


def _fill_ends(entries: Sequence[_Entry]) -> list[_Entry]:
    """End each scheduler without an end where the next one begins that is not there from the
    start."""
    filled: list[_Entry] = []
    next_begin: Interval | None = None
    for entry in reversed(entries):
        bounds = entry.bounds
        filled.append(entry.between(bounds.begin, bounds.end or next_begin))
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
            for entry in collect_problems([], _read_entries, scheduler, task, path) or ():
                bounds = entry.bounds
                written = (bounds.begin, bounds.end, bounds.interval)
                durations += [duration for duration in written if duration]
    return choose_interval(durations) if durations else None


@dataclass(frozen=True)
class _Span:
    """When a scheduler of a list acts, counted in the hook's steps."""

    begin: int
    end: int
    every: int

    @classmethod
    def measure(cls, bounds: PhaseBounds, timeline: Timeline) -> "_Span | None":
        """Count the bounds of a scheduler in steps; None if that needs data that is not there."""
        begin = timeline.count(bounds.begin or Interval(0))
        end = timeline.count(bounds.end or timeline.length)
        every = timeline.count(bounds.interval)
        if begin is None or end is None or every is None:
            return None
        return cls(begin, end, every)

    @property
    def length(self) -> int:
        """Number of times that the scheduler steps."""
        return divide_up(self.end - self.begin, self.every)

    def contains(self, step: int) -> bool:
        return self.begin <= step < self.end


def make_list_phases(
    schedulers: Sequence[Component], task: type[Task], timeline: Timeline, path: str
) -> Iterator[LRPhase]:
    """Yield the phases of a list of schedulers, which begin together or one after another.

    Raises ConfigError.
    """
    if timeline.every is None:
        raise ConfigError.at(path, "a list of schedulers needs the hook param_scheduler")
    entries = _read_entries(schedulers, task, path)
    spans = [_Span.measure(entry.bounds, timeline) for entry in entries]
    _check_spans(entries, spans, timeline)
    begins = {span.begin for span in spans if span}
    for entry, span in zip(entries, spans, strict=True):
        # Without data, any length serves to check the rest.
        length = span.length if span else 1
        arguments = add_length(entry.kind, entry.arguments, task, length, entry.path)
        if span is None:
            yield LRPhase(entry.path, entry.kind, arguments)
            continue

        last = None
        if entry.bounds.end:
            is_followed = span.end in begins  # by a scheduler that takes the last step
            last = span.end - 1 if is_followed else span.end
        yield LRPhase(entry.path, entry.kind, arguments, span.begin, last, span.every)


def _check_spans(
    entries: Sequence[_Entry], spans: Sequence[_Span | None], timeline: Timeline
) -> None:
    """Raise ConfigError for a scheduler outside of the run, or one that begins within another."""
    total = timeline.count(timeline.length)
    measured = [span for span in spans if span]
    for entry, span in zip(entries, spans, strict=True):
        if span is None:
            continue
        bounds = entry.bounds
        if total is not None and span.begin >= total:
            raise ConfigError.at(
                entry.path, f"must begin before the end at {timeline.length}, got {bounds.begin}"
            )
        if span.begin >= span.end:
            raise ConfigError.at(
                entry.path, f"begins after {bounds.begin}, but ends after {bounds.end}"
            )
        if span.begin and any(
            other.contains(span.begin) for other in measured if other is not span
        ):
            raise ConfigError.at(
                entry.path,
                f"begins after {bounds.begin}, before another has ended",
                "begin later, or together at 0",
            )

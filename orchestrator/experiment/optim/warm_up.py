"""A single scheduler over the run, after a warm-up if there is one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hooks import Interval
from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.optim.lr_phase import LRPhase
from orchestrator.experiment.optim.scheduler import needs_metric, split_arguments
from orchestrator.experiment.optim.scheduler_keys import WarmUp, WarmUpInSteps
from orchestrator.experiment.optim.step_counts import add_length, count_from
from orchestrator.experiment.optim.timeline import Timeline
from orchestrator.task import Task


def make_single_phases(
    scheduler: Component, task: type[Task], timeline: Timeline, path: str
) -> Iterator[LRPhase]:
    """Yield the phases of a single scheduler: a warm-up if there is one, then the scheduler.

    Raises ConfigError.
    """
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
    phase = LRPhase(path, kind, arguments)
    if not begin:
        yield phase
        return

    phase.check(task)  # as written, so that errors have these values
    rise = {"start_factor": warm.warmup_factor, "total_iters": begin}
    yield LRPhase(path, "LinearLR", rise, last=begin - 1)
    yield replace(phase, arguments=count_from(begin, arguments, path), begin=begin)


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

"""The metrics that an experiment monitors: their modes, and those that no report can hold."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from inspect import get_annotations
from typing import Any, NamedTuple

from hooks import HOOKS, Hook
from hooks.interval import Interval
from hooks.metrics.direction import (
    MonitoredMetrics,
    declared_modes,
    direction,
    find_monitored_metrics,
)
from hooks.metrics.names import PHASES, nearest, phase_of, phases_of
from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.sections.sweep import Sweep
from orchestrator.experiment.yaml.source import with_value
from orchestrator.task import Task, has_custom_loop
from orchestrator.user_code import catch_user_errors

_REPORTED_ENDINGS = ("_s", "_bytes")
"""Endings of names that hooks add to each phase in a report: `val/samples_per_s`."""


def infer_modes(data: Mapping[str, Any], sweep: Sweep | None = None) -> dict[str, Any]:
    """Return the modes that the sweep, a checkpoint or early stopping takes over from other parts,
    by path.

    `sweep` is the sweep if the experiment is one of its trials.
    """
    if sweep is not None:
        data = {
            **data,
            "sweep": {"metric": sweep.metric, "mode": [mode for _, mode in sweep.objectives]},
        }
    declared, inferred = declared_modes(data), {}
    for monitored in find_monitored_metrics(data):
        if monitored.entry.get("mode") is not None:
            continue
        modes = [direction(metric, declared) for metric in monitored.metrics]
        takes_over = _get_kind(monitored) in ("sweep", "checkpoint", "early_stopping")
        if takes_over and declared.keys() & {*monitored.metrics} and all(modes):
            inferred[f"{monitored.path}.mode"] = modes if len(modes) > 1 else modes[0]
    return inferred


def with_inferred_modes(data: Mapping[str, Any]) -> Mapping[str, Any]:
    for path, mode in infer_modes(data).items():
        data = with_value(data, path, mode)
    return data


def find_contradicting_modes(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each part that gives a metric another mode than an earlier part."""
    first: dict[str, MonitoredMetrics] = {}
    for monitored in find_monitored_metrics(data):
        for metric, mode in monitored.modes.items():
            other = first.setdefault(metric, monitored)
            if other.modes[metric] != mode:
                message = (
                    f"has mode {mode} for {metric}, but {other.path} has mode {other.modes[metric]}"
                )
                yield Problem(monitored.path, message)


def _get_kind(monitored: MonitoredMetrics) -> str:
    return str(monitored.entry.get("type", monitored.path.removeprefix("hooks.")))


class _Monitored(NamedTuple):
    """A metric, and the part that monitors it."""

    path: str
    kind: str
    metric: str

    @property
    def phase(self) -> str:
        """`train`, `val` or `test`; empty for a metric without a phase."""
        return (
            "val" if (self.kind, self.metric) == ("checkpoint", "auto") else phase_of(self.metric)
        )

    def make_problem(self, message: str, known: Iterable[str] = ()) -> Problem:
        near = nearest(self.metric, known)
        return Problem(
            self.path,
            f"'{self.metric}' {message}",
            suggestion=f"did you mean '{near}'?" if near else None,
        )


def has_unknown_metrics(task: Task, hooks: Iterable[Hook]) -> bool:
    """Return whether a custom hook, or the task's own training loop, may report metrics."""
    return has_custom_loop(type(task)) or any(
        type(hook) not in HOOKS.values()
        and (hook.handles("on_phase_end") or hook.handles("on_report"))
        for hook in hooks
    )


def check_metrics(
    data: Mapping[str, Any], task: Task, hooks: Mapping[str, Hook]
) -> Iterator[Problem]:
    """Yield a problem for each monitored metric that no report of a resolved experiment can
    hold."""
    has_unknown = has_unknown_metrics(task, hooks.values())
    never_validates = Interval.parse(data["validate_every"]).count == 0
    known = {} if has_unknown else _list_metric_names(task)
    for monitored in _list_monitored(data):
        is_sweep, stops_training = (
            monitored.kind == "sweep",
            monitored.kind in ("early_stopping", "param_scheduler"),
        )
        # A meter of several values reports `val/confusion/0`, and averaged weights `val/ema/loss`.
        has_ending = is_sweep and monitored.metric.endswith(_REPORTED_ENDINGS)
        may_be_reported = has_ending or {*monitored.metric.split("/")[1:]} & {
            *known.get(monitored.phase, ())
        }
        names = [f"{monitored.phase}/{name}" for name in known.get(monitored.phase, ())]
        if stops_training and monitored.phase == "test":
            yield monitored.make_problem("is measured after training; use a metric of train or val")
        elif (
            not monitored.phase
            and not (is_sweep and "/" in monitored.metric)
            and (stops_training or not has_unknown)
        ):
            metric = monitored.metric.rpartition("/")[2]
            near = [f"{phase}/{name}" for phase in PHASES for name in known.get(phase, (metric,))]
            yield monitored.make_problem(
                "has no phase; metrics begin with train/, val/ or test/", near
            )
        elif monitored.phase == "val" and never_validates and not (has_unknown and is_sweep):
            yield monitored.make_problem("is never measured with validate_every: 0")
        elif names and monitored.metric != "auto" and not may_be_reported:
            yield monitored.make_problem(
                f"is not a metric of this task; available: {', '.join(names)}", names
            )


def check_phases_of_metrics(data: Mapping[str, Any], phases: Collection[str]) -> list[Problem]:
    """Return a problem for each monitored metric of a phase that is not among the `phases` with
    data."""
    problems = []
    for monitored in _list_monitored(data):
        is_auto, phase = monitored.metric == "auto", monitored.phase
        if phase and not (
            phases_of("val", phases) if is_auto else phase_of(monitored.metric, phases)
        ):
            # The metric's name in each phase of the same kind
            near = [
                f"{other}/{monitored.metric.rpartition('/')[2]}"
                for other in phases_of(phase, phases)
            ]
            message = (
                f"is never measured: data() of the task returns {', '.join(phases)} and no {phase}"
            )
            problems.append(monitored.make_problem(message, near))
    return problems


def _list_monitored(data: Mapping[str, Any]) -> Iterator[_Monitored]:
    for part in find_monitored_metrics(data):
        kind = _get_kind(part)
        if kind in ("checkpoint", "early_stopping", "param_scheduler") or (
            kind == "sweep" and not any(map(_decides_metrics, part.entry.get("space") or ()))
        ):
            yield from (
                _Monitored(f"{part.path}.{part.key}", kind, metric) for metric in part.metrics
            )


def _decides_metrics(path: str) -> bool:
    """Return whether a swept path decides what trials measure: task, hooks, validation."""
    is_hook = path.startswith("hooks.") and path.count(".") == 1
    return is_hook or path.startswith(("task", "validate_every")) or path.endswith(".type")


def _list_metric_names(task: Task) -> dict[str, list[str]]:
    """Return the names of a task's metrics by phase; empty if they are unknown before the first
    batch."""
    # Any annotation except a tensor may mean that the loss has parts, which are metrics too.
    annotation = str(get_annotations(type(task).loss).get("return")).rpartition(".")[2].strip("'>")
    if type(task).metrics is not Task.metrics or annotation != "Tensor":
        return {}
    try:
        with catch_user_errors("task"):
            meters = list(task.meters())
    except ConfigError:  # what it needs may be present only where it trains
        return {}
    return {"train": ["loss"], "val": ["loss", *meters], "test": ["loss", *meters]}

"""The metrics that an experiment monitors: their modes, and those that no report can hold."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from inspect import get_annotations
from typing import Any, NamedTuple

from hooks import HOOKS, Hook
from hooks.hook import find_hook_with_metric
from hooks.interval import Interval
from hooks.metrics.direction import (
    Mode,
    MonitoredMetrics,
    declared_modes,
    direction,
    find_meter_modes,
    find_modes_by_meter,
    find_monitored_metrics,
)
from hooks.metrics.names import PHASES, nearest, phase_of, phases_of
from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.notify import parse_target
from orchestrator.experiment.sections.sweep import Sweep
from orchestrator.experiment.yaml.source import with_value
from orchestrator.task import Task, has_custom_loop
from orchestrator.user_code import catch_user_errors

_OF_ANY_REPORT = ("sweep", "notify")
"""Parts that read whole reports, also what hooks add to them."""
_REPORTED_ENDINGS = ("_s", "_bytes")
"""Endings of names that hooks add to each phase in a report: `val/samples_per_s`."""


def read_meter_modes(task: Task) -> dict[str, Mode]:
    """Return the modes of a task's meters by name; empty if they cannot be made here."""
    return find_meter_modes(_make_meters(task) or {})


def _make_meters(task: Task) -> Mapping[str, Any] | None:
    """Return the meters of a task, or None if they cannot be made here."""
    try:
        with catch_user_errors("task"):
            return dict(task.meters())
    except ConfigError:  # what it needs may be present only where it trains
        return None


def with_meter_modes(experiment: Experiment, meters: Mapping[str, Mode]) -> Experiment:
    """Return an experiment whose parts have the modes of the meters that they monitor, where the
    name alone says something else or nothing."""
    sweep = experiment.sweep
    objective = {"metric": sweep.metric, "mode": sweep.mode} if sweep else None
    data = with_inferred_modes({"hooks": experiment.hooks, "sweep": objective}, meters)
    if sweep:
        sweep = sweep.model_copy(update={"mode": data["sweep"]["mode"]})
    return experiment.model_copy(update={"hooks": data["hooks"], "sweep": sweep})


def infer_modes(
    data: Mapping[str, Any],
    sweep: Sweep | None = None,
    meters: Mapping[str, Mode] | None = None,
) -> dict[str, Any]:
    """Return the modes that parts take over from other parts or from the task's meters, by path.

    `sweep` is the sweep if the experiment is one of its trials.
    """
    if sweep is not None:
        modes = [mode for _, mode in sweep.objectives]
        data = {**data, "sweep": {"metric": sweep.metric, "mode": modes}}
    declared = {**_find_modes_by_meter(data, meters or {}), **declared_modes(data)}
    inferred: dict[str, Any] = {}
    for monitored in find_monitored_metrics(data):
        takes_over = _get_kind(monitored) in ("sweep", "checkpoint", "early_stopping")
        has_mode = monitored.entry.get("mode") is not None
        if has_mode or not takes_over or declared.keys().isdisjoint(monitored.metrics):
            continue
        known = [direction(metric, declared) for metric in monitored.metrics]
        if all(known):
            inferred[f"{monitored.path}.mode"] = known if len(known) > 1 else known[0]
    return inferred


def _find_modes_by_meter(data: Mapping[str, Any], meters: Mapping[str, Mode]) -> dict[str, Mode]:
    """Return the modes of monitored metrics that follow from meters, but not from their names."""
    modes: dict[str, Mode] = {}
    for monitored in find_monitored_metrics(data):
        modes |= find_modes_by_meter(monitored.metrics, meters)
    return {metric: mode for metric, mode in modes.items() if mode != direction(metric)}


def with_inferred_modes(
    data: Mapping[str, Any], meters: Mapping[str, Mode] | None = None
) -> Mapping[str, Any]:
    for path, mode in infer_modes(data, meters=meters).items():
        data = with_value(data, path, mode)
    return data


def find_contradicting_modes(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each part that gives a metric another mode than an earlier part."""
    first: dict[str, MonitoredMetrics] = {}
    for monitored in find_monitored_metrics(data):
        for metric, mode in monitored.modes.items():
            other = first.setdefault(metric, monitored)
            other_mode = other.modes[metric]
            if other_mode != mode:
                yield Problem(
                    monitored.path,
                    f"has mode {mode} for {metric}, but {other.path} has mode {other_mode}",
                )


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
        if (self.kind, self.metric) == ("checkpoint", "auto"):
            return "val"
        return phase_of(self.metric)

    @property
    def stops_training(self) -> bool:
        """True if the metric is needed while the run trains."""
        return self.kind in ("early_stopping", "param_scheduler")

    def make_problem(self, message: str, known: Iterable[str] = ()) -> Problem:
        near = nearest(self.metric, known)
        hint = f"did you mean '{near}'?" if near else None
        return Problem(self.path, f"'{self.metric}' {message}", suggestion=hint)


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
    """Yield a problem for each monitored metric that no report can hold."""
    has_unknown = has_unknown_metrics(task, hooks.values())
    validates = Interval.parse(data["validate_every"]).count > 0
    known = {} if has_unknown else _list_metric_names(task)
    for name in known.get("val", ()):
        hook = find_hook_with_metric(name, hooks)
        if hook is not None:
            yield Problem(
                "task", f"meters() returns '{name}', a metric of the hook '{hook}'; rename it"
            )
    for monitored in _list_monitored(data):
        is_of_any_report = monitored.kind in _OF_ANY_REPORT
        phase = monitored.phase
        if phase == "test" and monitored.stops_training:
            yield monitored.make_problem("is measured after training; use a metric of train or val")
        elif not phase:
            # A sweep may compare trials by `stats/...`, and a custom hook may report any name.
            is_other = (is_of_any_report and "/" in monitored.metric) or has_unknown
            if monitored.stops_training or not is_other:
                yield _explain_missing_phase(monitored, known)
        elif phase == "val" and not validates and not (has_unknown and is_of_any_report):
            yield monitored.make_problem("is never measured with validate_every: 0")
        elif phase in known and not _may_be_reported(monitored, known[phase]):
            names = [f"{phase}/{name}" for name in known[phase]]
            yield monitored.make_problem(
                f"is not a metric of this task; available: {', '.join(names)}", names
            )


def _explain_missing_phase(monitored: _Monitored, known: Mapping[str, list[str]]) -> Problem:
    metric = monitored.metric.rpartition("/")[2]
    near: list[str] = []
    for phase in PHASES:
        near += [f"{phase}/{name}" for name in known.get(phase, (metric,))]
    return monitored.make_problem("has no phase; metrics begin with train/, val/ or test/", near)


def _may_be_reported(monitored: _Monitored, names: Collection[str]) -> bool:
    """Return whether a report may hold a metric, given the names of the task's metrics."""
    if monitored.metric == "auto":
        return True
    if monitored.kind in _OF_ANY_REPORT and monitored.metric.endswith(_REPORTED_ENDINGS):
        return True
    # A meter of several values reports `val/confusion/0`, and averaged weights `val/ema/loss`.
    return not set(names).isdisjoint(monitored.metric.split("/")[1:])


def check_phases_of_metrics(data: Mapping[str, Any], phases: Collection[str]) -> list[Problem]:
    """Return a problem for each monitored metric of a phase that has no data."""
    problems = []
    for monitored in _list_monitored(data):
        phase = monitored.phase
        if monitored.metric == "auto":
            has_data = bool(phases_of("val", phases))
        else:
            has_data = bool(phase_of(monitored.metric, phases))
        if phase and not has_data:
            metric = monitored.metric.rpartition("/")[2]
            near = [f"{other}/{metric}" for other in phases_of(phase, phases)]
            returned = f"data() of the task returns {', '.join(phases)} and no {phase}"
            problems.append(monitored.make_problem(f"is never measured: {returned}", near))
    return problems


def _list_monitored(data: Mapping[str, Any]) -> Iterator[_Monitored]:
    for part in find_monitored_metrics(data):
        kind = _get_kind(part)
        space = part.entry.get("space") or ()
        is_known_sweep = kind == "sweep" and not any(map(_decides_metrics, space))
        if is_known_sweep or kind in ("checkpoint", "early_stopping", "param_scheduler"):
            for metric in part.metrics:
                yield _Monitored(f"{part.path}.{part.key}", kind, metric)

    sweep = data.get("sweep") or {}
    if any(map(_decides_metrics, sweep.get("space") or ())):
        return
    for column in sweep.get("constraints") or ():
        if "/" in column:
            yield _Monitored("sweep.constraints", "sweep", column.removeprefix("last/"))
    target = (data.get("notify") or {}).get("target")
    if target:
        yield _Monitored("notify.target", "notify", parse_target(target)[0])


def _decides_metrics(path: str) -> bool:
    """Return whether a swept path decides what trials measure: task, hooks, validation."""
    is_hook = path.startswith("hooks.") and path.count(".") == 1
    return is_hook or path.startswith(("task", "validate_every")) or path.endswith(".type")


def _list_metric_names(task: Task) -> dict[str, list[str]]:
    """Return the names of a task's metrics by phase, as far as they are known."""
    # Any annotation except a tensor may mean that the loss has parts, which are metrics too.
    annotation = str(get_annotations(type(task).loss).get("return")).rpartition(".")[2].strip("'>")
    if type(task).metrics is not Task.metrics or annotation != "Tensor":
        return {}
    meters = _make_meters(task)
    if meters is None:
        return {}
    return {"train": ["loss"], "val": ["loss", *meters], "test": ["loss", *meters]}

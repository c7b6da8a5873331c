"""The modes of the metrics that an experiment monitors: whether more or less is better."""

from collections.abc import Iterator, Mapping
from typing import Any

from hooks.metrics.direction import Mode, find_direction, find_meter_modes, find_modes_by_meter
from hooks.metrics.monitored import MonitoredMetrics, find_declared_modes, find_monitored_metrics
from orchestrator.errors import Problem
from orchestrator.experiment.checks.metrics import find_monitoring_hook, make_meters
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.yaml.dotted_paths import with_value
from orchestrator.task import Task


def read_meter_modes(task: Task) -> dict[str, Mode]:
    """Return the modes of a task's meters by name; empty if they cannot be made here."""
    return find_meter_modes(make_meters(task) or {})


def with_meter_modes(experiment: Experiment, meters: Mapping[str, Mode]) -> Experiment:
    """Return an experiment whose parts have the modes of the meters that they monitor, where the
    name alone says something else or nothing."""
    sweep = experiment.sweep
    objective = {"metric": sweep.metric, "mode": sweep.mode} if sweep else None
    data = with_inferred_modes({"hooks": experiment.hooks, "sweep": objective}, meters)
    if sweep:
        sweep = sweep.model_copy(update={"mode": data["sweep"]["mode"]})
    return experiment.with_valid_values(hooks=data["hooks"], sweep=sweep)


def infer_modes(
    data: Mapping[str, Any],
    sweep: SweepSettings | None = None,
    meters: Mapping[str, Mode] | None = None,
) -> dict[str, Any]:
    """Return the modes that parts take over from other parts or from the task's meters, by path.

    `sweep` is the sweep if the experiment is one of its trials.
    """
    if sweep is not None:
        modes = [mode for _, mode in sweep.objectives]
        data = {**data, "sweep": {"metric": sweep.metric, "mode": modes}}
    declared = {**_find_modes_by_meter(data, meters or {}), **find_declared_modes(data)}
    inferred: dict[str, Any] = {}
    for monitored in find_monitored_metrics(data):
        if monitored.entry.get("mode") is not None or not _can_have_mode(monitored):
            continue
        if declared.keys().isdisjoint(monitored.metrics):
            continue
        known = [find_direction(metric, declared) for metric in monitored.metrics]
        if all(known):
            inferred[f"{monitored.path}.mode"] = known if len(known) > 1 else known[0]
    return inferred


def _can_have_mode(monitored: MonitoredMetrics) -> bool:
    """Return whether the part that monitors the metrics has a field `mode`."""
    hook = find_monitoring_hook(monitored)
    return monitored.path == "sweep" or (hook is not None and "mode" in list_parameters(hook))


def _find_modes_by_meter(data: Mapping[str, Any], meters: Mapping[str, Mode]) -> dict[str, Mode]:
    """Return the modes of monitored metrics that follow from meters, but not from their names."""
    modes: dict[str, Mode] = {}
    for monitored in find_monitored_metrics(data):
        modes |= find_modes_by_meter(monitored.metrics, meters)
    return {metric: mode for metric, mode in modes.items() if mode != find_direction(metric)}


def with_inferred_modes(
    data: Mapping[str, Any], meters: Mapping[str, Mode] | None = None
) -> Mapping[str, Any]:
    """Return an experiment in which parts have the modes that they take over from others."""
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

"""Which way metrics are better, where parts of an experiment say it of the same ones: what one leaves unsaid, and what
two contradict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hooks.metrics.direction import MonitoredMetrics, declared_modes, direction, find_monitored_metrics
from orchestrator.config.sections.sweep import Sweep
from orchestrator.errors import Problem


def inferred_modes(data: Mapping[str, Any], sweep: Sweep | None = None) -> dict[str, Any]:
    """The path of each `mode` that the sweep, a checkpoint or early stopping leaves unsaid though another part of the
    experiment says it of their metrics, and what it says. `sweep` is that of which the experiment is a trial."""
    if sweep is not None:
        data = {**data, "sweep": {"metric": sweep.metric, "mode": [mode for _, mode in sweep.objectives]}}
    declared, inferred = declared_modes(data), {}
    for monitored in find_monitored_metrics(data):
        kind = monitored.entry.get("type", monitored.path.removeprefix("hooks."))
        silent = monitored.entry.get("mode") is None and monitored.entry.get("rule") is None
        modes = [direction(metric, declared) for metric in monitored.metrics]
        if (
            silent
            and kind in ("sweep", "checkpoint", "early_stopping")
            and declared.keys() & {*monitored.metrics}
            and all(modes)
        ):
            inferred[f"{monitored.path}.mode"] = modes if len(modes) > 1 else modes[0]
    return inferred


def contradicting_modes(data: Mapping[str, Any]) -> list[Problem]:
    """Parts of an experiment that say opposite things of a metric."""
    problems: list[Problem] = []
    first: dict[str, MonitoredMetrics] = {}
    for monitored in find_monitored_metrics(data):
        for metric, mode in monitored.modes.items():
            other = first.setdefault(metric, monitored)
            if other.modes[metric] != mode:
                message = f"says that {mode} of {metric} is better, and {other.path} says {other.modes[metric]}"
                problems.append(Problem(monitored.path, message))
    return problems

"""The metrics that an experiment monitors, in its sweep and its hooks, and the modes that it sets."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hooks.metrics.direction import Mode, list_modes

AUTO = "auto"
"""Value of `best` if the run chooses the metric."""


class MonitoredMetrics(NamedTuple):
    """The metrics that one section of an experiment monitors: the sweep or a hook."""

    path: str
    key: str
    """Key of its metrics: `metric`, `best` or `monitor`."""
    entry: dict[str, Any]
    metrics: list[str]
    modes: dict[str, Mode]
    """Modes that it sets."""


def find_monitored_metrics(
    config: Mapping[str, Any], auto: str = AUTO
) -> Iterator[MonitoredMetrics]:
    """Yield the metrics that each section of an experiment monitors, the sweep first.

    `config` is plain data that may still be invalid. `auto` is the metric that `best: auto` has
    chosen.
    """
    sections = {"sweep": config.get("sweep")}
    hooks = config.get("hooks")
    if isinstance(hooks, Mapping):
        sections |= {f"hooks.{name}": entry for name, entry in hooks.items()}
    for path, entry in sections.items():
        if isinstance(entry, dict):
            yield from _read_section(path, entry, auto)


def _read_section(path: str, entry: dict[str, Any], auto: str) -> Iterator[MonitoredMetrics]:
    key = "best" if entry.get("best") else "monitor"
    if path == "sweep":
        key = "metric"
    metrics = entry.get(key)
    if not isinstance(metrics, list):
        metrics = [auto if metrics == AUTO else metrics]
    if not metrics or not all(isinstance(metric, str) for metric in metrics):
        return

    # An invalid section may have a wrong number of modes.
    modes = zip(metrics, list_modes(entry.get("mode"), len(metrics)), strict=False)
    known = {metric: mode for metric, mode in modes if mode}
    yield MonitoredMetrics(path, key, entry, metrics, known)


def find_declared_modes(config: Mapping[str, Any], auto: str = AUTO) -> dict[str, Mode]:
    """Return the mode of each metric for which an experiment sets one; the sweep comes before
    hooks. `auto` is the metric that `best: auto` has chosen."""
    modes: dict[str, Mode] = {}
    for monitored in find_monitored_metrics(config, auto):
        modes = {**monitored.modes, **modes}
    return modes

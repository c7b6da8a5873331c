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
    """Names of the metrics; empty if the run chooses one."""
    modes: dict[str, Mode]
    """Modes that it sets for these metrics."""
    is_auto: bool
    """True with `best: auto`: the run chooses the metric."""


def find_monitored_metrics(config: Mapping[str, Any]) -> Iterator[MonitoredMetrics]:
    """Yield the metrics that each section of an experiment monitors, the sweep first.

    `config` is plain data that may still be invalid.
    """
    sweep = config.get("sweep")
    if isinstance(sweep, dict):
        yield from _read_section("sweep", sweep, "metric")

    hooks = config.get("hooks")
    if not isinstance(hooks, Mapping):
        return
    for name, entry in hooks.items():
        if isinstance(entry, dict):
            key = "best" if entry.get("best") else "monitor"
            yield from _read_section(f"hooks.{name}", entry, key)


def _read_section(path: str, entry: dict[str, Any], key: str) -> Iterator[MonitoredMetrics]:
    metrics = entry.get(key)
    if not isinstance(metrics, list):
        metrics = [metrics]
    if key == "best" and metrics == [AUTO]:
        yield MonitoredMetrics(path, key, entry, metrics=[], modes={}, is_auto=True)
        return
    if not metrics or not all(isinstance(metric, str) for metric in metrics):
        return

    # An invalid section may have a wrong number of modes.
    modes = zip(metrics, list_modes(entry.get("mode"), len(metrics)), strict=False)
    known = {metric: mode for metric, mode in modes if mode}
    yield MonitoredMetrics(path, key, entry, metrics, known, is_auto=False)


def find_declared_modes(config: Mapping[str, Any]) -> dict[str, Mode]:
    """Return the mode of each metric for which an experiment sets one; the sweep comes before
    hooks."""
    modes: dict[str, Mode] = {}
    for monitored in find_monitored_metrics(config):
        modes = {**monitored.modes, **modes}
    return modes

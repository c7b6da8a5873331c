"""The main metric of a run, by which its best checkpoint and its best report are chosen."""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any

from hooks.metrics.direction import Mode, find_direction, find_words, list_modes
from hooks.metrics.monitored import (
    MonitoredMetrics,
    find_declared_modes,
    find_monitored_metrics,
)

_LOSSES = frozenset({"loss", "losses"})
"""Words of the names of losses and of their terms."""
_MEASURED = ("/samples_per_s", "/iteration_s", "_bytes")
"""Ends of the metrics of `perf_stats` and `memory_stats`."""


def find_best_metric(
    reported: Collection[str],
    config: Mapping[str, Any],
    checkpoint_metric: str = "",
    meters: Mapping[str, Mode] | None = None,
) -> tuple[str, Mode] | None:
    """Return a run's main metric and its mode; None if that is unknown.

    `checkpoint_metric` is the metric of its best checkpoint. Without one, it is the first of
    `hooks.checkpoint.best`, or the metric that this hook would choose.
    """
    best = _find_checkpoint_best(config)
    metric = checkpoint_metric or _find_configured_metric(best, reported, config, meters)
    if not metric:
        return None

    mode = _read_mode_of_auto(best) if best and best.is_auto else None
    mode = mode or find_direction(metric, find_declared_modes(config), meters)
    return (metric, mode) if mode else None


def _read_mode_of_auto(best: MonitoredMetrics) -> Mode | None:
    """Return the mode that `hooks.checkpoint` sets for the metric that the run chooses."""
    return next(iter(list_modes(best.entry.get("mode"), 1)), None)


def _find_checkpoint_best(config: Mapping[str, Any]) -> MonitoredMetrics | None:
    """Return the metrics of `hooks.checkpoint.best`; None if it is not set."""
    for monitored in find_monitored_metrics(config):
        if monitored.path == "hooks.checkpoint" and monitored.key == "best":
            return monitored
    return None


def _find_configured_metric(
    best: MonitoredMetrics | None,
    reported: Collection[str],
    config: Mapping[str, Any],
    meters: Mapping[str, Mode] | None,
) -> str | None:
    if best is None:
        return choose_main_metric(reported, config, meters)
    if best.is_auto:
        return next(iter(list_val_metrics(reported)), None)
    return best.metrics[0]


def choose_main_metric(
    reported: Collection[str],
    config: Mapping[str, Any],
    meters: Mapping[str, Mode] | None = None,
) -> str | None:
    """Return the main metric where no checkpoint is kept by one: the first monitored validation
    metric, else the first reported one with a known direction, losses last; None if no direction is
    known.
    """
    declared = find_declared_modes(config)
    val_metrics = list_val_metrics(reported)
    monitored = chain.from_iterable(part.metrics for part in find_monitored_metrics(config))
    for name in chain(monitored, val_metrics):
        if name in val_metrics and find_direction(name, declared, meters):
            return name
    return None


def list_val_metrics(reported: Iterable[str]) -> list[str]:
    """Return the metrics of val in the order in which one is chosen: losses come after the others,
    their terms after them, and the speed and memory that default hooks measure last."""
    names = (name for name in reported if name.startswith("val/"))
    return sorted(names, key=_rank)


def _rank(metric: str) -> int:
    if metric.endswith(_MEASURED):
        return 3
    if metric.endswith("/loss"):
        return 1
    words = find_words(metric.rpartition("/")[2])
    return 0 if words.isdisjoint(_LOSSES) else 2

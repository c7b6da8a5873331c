"""The best of several reports, and divergence. Does not import pandas, so that `show` starts
quickly."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from typing import Any, NamedTuple

from hooks.metrics.direction import Mode
from hooks.metrics.main_metric import find_best_metric
from orchestrator.disk.attempts import Attempt, get_meter_modes
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.reports import list_reported_names
from orchestrator.units import is_number, number_epoch


@dataclass(frozen=True)
class Divergence:
    """A loss or metric that is no longer finite."""

    iteration: int
    """Iteration of the first report from which on the metric is not finite."""
    description: str

    def __str__(self) -> str:
        return self.description


def find_divergence(reports: Sequence[Mapping[str, Any]], metric: str | None) -> Divergence | None:
    """Return the first loss, or else `metric`, whose last reported value is not finite; None if all
    are finite.

    With several optimizers, each has a loss, such as `train/loss_d`.
    """
    names = dict.fromkeys(filter(_is_loss, chain.from_iterable(reports)))
    if metric:
        names[metric] = None

    for name in names:
        divergence = _find_divergence_of(name, reports)
        if divergence:
            return divergence
    return None


def _is_loss(name: str) -> bool:
    return name == "train/loss" or name.startswith("train/loss_")


def _find_divergence_of(name: str, reports: Sequence[Mapping[str, Any]]) -> Divergence | None:
    first = None
    for report in reports:
        value = report.get(name)
        if not isinstance(value, Real):
            continue
        if math.isfinite(value):
            first = None
            continue
        first = first or report
        last = "NaN" if math.isnan(value) else value
    if first is None:
        return None
    description = f"{name} is {last} since epoch {number_epoch(first.get('epoch', 0))}"
    return Divergence(first.get("iteration", 0), description)


class ReportsSummary(NamedTuple):
    """What the reports of a run come to."""

    best: Mapping[str, Any] | None
    """The best report by the main metric; None if there is none."""
    divergence: Divergence | None


def summarize_reports(
    reports: Sequence[Mapping[str, Any]], main: tuple[str, str] | None, metrics: Iterable[str]
) -> ReportsSummary:
    """Return the best of a run's reports, and its divergence.

    Args:
        reports: The reports, without superseded ones.
        main: The metric by which one is the best, and `max` or `min`; None if that is unknown.
        metrics: Metrics that the best report must have: of a trial, all of its sweep.
    """
    if main is None:
        return ReportsSummary(None, find_divergence(reports, None))
    best = find_best_report(select_comparable(reports, metrics), *main)
    return ReportsSummary(best, find_divergence(reports, main[0]))


def select_comparable(
    reports: Sequence[Mapping[str, Any]], metrics: Iterable[str]
) -> list[Mapping[str, Any]]:
    """Return the reports with all of these metrics."""
    names = {*metrics}
    return [report for report in reports if names <= report.keys()]


def find_best_report(
    reports: Sequence[Mapping[str, Any]], metric: str, mode: str
) -> Mapping[str, Any] | None:
    """Return the first report with the best value of a metric, by `max` or `min`; None if no report
    has one."""
    measured = [report for report in reports if is_number(report.get(metric))]
    finite = [report for report in measured if math.isfinite(report[metric])]
    find = max if mode == "max" else min
    return find(finite, key=lambda report: report[metric], default=None)


def find_main_metric(
    metadata: RunMetadata,
    config: Mapping[str, Any],
    attempts: Sequence[Attempt],
    reports: Sequence[Mapping[str, Any]],
    checkpoint_metric: str,
) -> tuple[str, Mode] | None:
    """Return the metric by which a run has a best report, and its mode; None if that is unknown.

    That of a trial is the first metric of its sweep. `checkpoint_metric` is the metric of the run's
    best checkpoint; empty if there is none.
    """
    modes = metadata.trial_settings.modes
    if modes:
        return next(iter(modes.items()))
    meters = get_meter_modes(attempts)
    return find_best_metric(list_reported_names(reports), config, checkpoint_metric, meters)

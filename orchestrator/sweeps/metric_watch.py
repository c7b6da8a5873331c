"""Checks that the reports of a trial have the sweep's metrics. In the process that drives the trial."""

from __future__ import annotations

from hooks.metrics.names import list_known, nearest, phase_of, phases_of
from hooks.stats.row_stats import PREFIX
from orchestrator.config.checks.metrics import has_unknown_metrics
from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.config.sections.sweep import Sweep
from orchestrator.errors import MetricMissing, RunError
from orchestrator.loop.report import Report
from orchestrator.records.run_folder import RunFolder
from orchestrator.stats.read.reading import recorded_schema

_MISSPELLING = 0.8
"""Similarity (difflib's ratio) from which a missing metric counts as a misspelling of a reported one."""


class MetricWatch:
    """Checks the reports of one trial until one has the sweep's metrics. `seen` if an earlier attempt had them.

    A metric comes with each report of its phase, so the first such report without it tells. A hook of the user's own
    may add a metric now and then, and a column of the rows may be recorded later. Before the trial's end these count as
    missing only where they look misspelled.
    """

    def __init__(self, settings: Sweep, resolved: ResolvedExperiment, folder: RunFolder, *, seen: bool = False) -> None:
        self._metrics, self._folder, self._seen = settings.metrics, folder, seen
        self._has_own_hooks = has_unknown_metrics(resolved.task, resolved.hooks.values())

    def has_metrics(self, report: Report) -> bool:
        """Return whether a report has all of the sweep's metrics. Raises MetricMissing if none ever will."""
        missing = [metric for metric in self._metrics if metric not in report.metrics]
        self._seen = self._seen or not missing
        if self._seen:
            return not missing
        names = self._names(report, missing)
        if (report.final and not report.stopped) or any(self._is_missing(metric, report, names) for metric in missing):
            raise MetricMissing(f"no report of a trial has {self._describe()}; {list_known(names, *missing)}")
        return False

    def ended_without_metrics(self, last: Report | None) -> RunError:
        """Return the failure of a trial that ended before it reported the sweep's metrics."""
        reason = f": {', '.join(last.stopped)}" if last and last.stopped else ""
        return RunError(f"the trial ended without a report that has {self._describe()}{reason}")

    def _is_missing(self, metric: str, report: Report, names: list[str]) -> bool:
        phase = phase_of(metric, report.phases)
        if phase_of(metric) and not phase:
            return not self._has_own_hooks
        may_come_later = self._has_own_hooks or metric.startswith(PREFIX)
        expected = phase or (phases_of("val", report.phases) or ["train"])[-1]
        is_complete = not report.cut_short and any(name.startswith(f"{expected}/") for name in report.metrics)
        return is_complete and (not may_come_later or nearest(metric, names, _MISSPELLING) is not None)

    def _names(self, report: Report, missing: list[str]) -> list[str]:
        """Return the reported metrics, and the statistics of rows that could be reported."""
        statistics = dict.fromkeys(metric.rpartition("/")[2] for metric in missing if metric.startswith(PREFIX))
        columns = recorded_schema(self._folder.storage).names if statistics else []
        rows = [f"{PREFIX}{column}/{statistic}" for column in columns for statistic in statistics]
        return [*(name for name in report.metrics if "/" in name), *rows]

    def _describe(self) -> str:
        if len(self._metrics) > 1:
            return f"the sweep's metrics {self._metrics}"
        return f"the sweep's metric '{self._metrics[0]}'"

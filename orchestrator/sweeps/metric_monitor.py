"""The check that the reports of a trial have the sweep's metrics."""

from hooks.metrics.names import REPORT_ENTRIES, find_phase, list_known, list_phases, nearest
from hooks.stats.row_stats import PREFIX
from orchestrator.disk.rows.file_rows import read_row_schema
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import MetricMissing, RunError
from orchestrator.experiment.checks.metrics import has_unknown_metrics
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.loop.report import Report

_MISSPELLING = 0.8
"""Minimum similarity (difflib's ratio) of a missing metric to a reported one to count as a
misspelling."""


def summarize_missing_metrics(settings: SweepSettings) -> str:
    """Say that the sweep's metrics are missing, without the metrics that there are."""
    return f"no report of a trial has {_describe_metrics(settings)}"


def _describe_metrics(settings: SweepSettings) -> str:
    names = ", ".join(f"'{metric}'" for metric in settings.metrics)
    noun = "metric" if len(settings.metrics) == 1 else "metrics"
    return f"the sweep's {noun} {names}"


class MetricMonitor:
    """Check of one trial's reports until one has the sweep's metrics. `seen` means that an earlier
    attempt had one.

    Each report of a phase has that phase's metrics. But a user's hook may add a metric only
    sometimes, and a column of the rows may appear later. Before the trial's end these count as
    missing only if they look misspelled.
    """

    def __init__(
        self,
        settings: SweepSettings,
        resolved: ResolvedExperiment,
        folder: RunFolder,
        *,
        seen: bool,
    ) -> None:
        self._settings = settings
        self._metrics = settings.metrics
        self._folder = folder
        self._seen = seen
        self._has_own_hooks = has_unknown_metrics(resolved.task, resolved.hooks.values())

    def check_report(self, report: Report) -> bool:
        """Return whether a report has all of the sweep's metrics. Raises MetricMissing if none ever
        will."""
        missing = [metric for metric in self._metrics if metric not in report.metrics]
        if not missing:
            self._seen = True
            return True
        if self._seen:
            return False

        known = self._list_known_names(report, missing)
        is_last = report.is_final and not report.stopped
        if is_last or any(self._will_never_come(metric, report, known) for metric in missing):
            summary = summarize_missing_metrics(self._settings)
            raise MetricMissing(f"{summary}; {list_known(known, *missing)}")
        return False

    def make_missing_metrics_error(self, last: Report | None) -> RunError:
        """Make the error of a trial that ended before it reported the sweep's metrics."""
        reason = f": {', '.join(last.stopped)}" if last and last.stopped else ""
        return RunError(
            f"the trial ended without a report that has {_describe_metrics(self._settings)}{reason}"
        )

    def _will_never_come(self, metric: str, report: Report, known: list[str]) -> bool:
        """Return whether no later report will have a metric that a report lacks."""
        phase = find_phase(metric, report.phases)
        if find_phase(metric) and not phase:
            # The run has no such phase, so that only a hook of the user can report the metric.
            return not self._has_own_hooks
        if report.is_partial or not _has_phase(report, phase or _find_last_phase(report)):
            return False

        may_come_later = self._has_own_hooks or metric.startswith(PREFIX)
        is_misspelled = nearest(metric, known, _MISSPELLING) is not None
        return is_misspelled or not may_come_later

    def _list_known_names(self, report: Report, missing: list[str]) -> list[str]:
        """Return the reported metrics, and the statistics of rows that could be reported."""
        names = [name for name in report.metrics if name not in REPORT_ENTRIES]
        statistics = [metric.rpartition("/")[2] for metric in missing if metric.startswith(PREFIX)]
        if statistics:
            for column in read_row_schema(self._folder.storage).names:
                names.extend(f"{PREFIX}{column}/{statistic}" for statistic in {*statistics})
        return names


def _find_last_phase(report: Report) -> str:
    """Return the last phase of validation, or `train` without any. A report with its metrics has
    those that belong to no phase too, such as statistics of rows."""
    validation = list_phases("val", report.phases)
    return validation[-1] if validation else "train"


def _has_phase(report: Report, phase: str) -> bool:
    """Return whether a report has metrics of a phase."""
    return any(name.startswith(f"{phase}/") for name in report.metrics)

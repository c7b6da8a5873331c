"""Which reports of a trial hold the sweep's metrics, and when it is plain that none will. In the process that drives
the trial."""

from __future__ import annotations

from collections.abc import Callable

from hooks.metrics.names import nearest, phase_of, phases_of, there_are
from hooks.stats.row_stats import PREFIX
from orchestrator.config.checks.metrics import may_add_metrics
from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.config.sections.sweep import Sweep
from orchestrator.errors import MetricMissing, RunError
from orchestrator.loop.report import Report
from orchestrator.records.run_folder import RunFolder
from orchestrator.stats.read.reading import recorded_schema

_CLEARLY = 0.8
"""How like a name that is there one must be to be a misspelling of it, where it might also come later (difflib's
ratio)."""


class MetricWatch:
    """Looks at each report of one trial, until one holds the sweep's metrics; where none will, lets go of the trial.

    What is said of a phase comes with each report of that phase, so the first such report without the metric tells. A
    hook of the user's own may give a metric now and then, and a column of the rows may be recorded later: of these only
    what is clearly a misspelling is told before the trial's end. `judged` says whether an earlier attempt has had the
    metrics; `leave` lets go of the trial.
    """

    def __init__(
        self,
        settings: Sweep,
        resolved: ResolvedExperiment,
        folder: RunFolder,
        *,
        judged: bool = False,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self._metrics, self._folder, self._judged, self._leave = settings.metrics, folder, judged, leave
        self._own_hooks = may_add_metrics(resolved.task, resolved.hooks.values())

    def holds(self, report: Report) -> bool:
        """Whether a report holds all of the sweep's metrics; raises MetricMissing where none ever will."""
        missing = [metric for metric in self._metrics if metric not in report.metrics]
        self._judged = self._judged or not missing
        if self._judged:
            return not missing
        names = self._names(report, missing)
        if (report.final and not report.stopped) or any(self._is_missing(metric, report, names) for metric in missing):
            self._leave()
            raise MetricMissing(f"no report of a trial holds {self._named()}; {there_are(names, *missing)}")
        return False

    def unjudged(self, last: Report | None) -> RunError:
        """The failure of a trial that was ended before it reported the sweep's metrics."""
        self._leave()
        reason = f": {', '.join(last.stopped)}" if last and last.stopped else ""
        return RunError(f"the trial ended without a report that holds {self._named()}{reason}")

    def _is_missing(self, metric: str, report: Report, names: list[str]) -> bool:
        phase = phase_of(metric, report.phases)
        if phase_of(metric) and not phase:
            return not self._own_hooks
        may_come_later = self._own_hooks or metric.startswith(PREFIX)
        held = phase or (phases_of("val", report.phases) or ["train"])[-1]
        told = not report.cut_short and any(name.startswith(f"{held}/") for name in report.metrics)
        return told and (not may_come_later or nearest(metric, names, _CLEARLY) is not None)

    def _names(self, report: Report, missing: list[str]) -> list[str]:
        """The metrics there are; of statistics of rows, those of the columns recorded so far."""
        names = [name for name in report.metrics if "/" in name]
        of_rows = [metric.rpartition("/")[2] for metric in missing if metric.startswith(PREFIX)]
        columns = recorded_schema(self._folder.storage).names if of_rows else []
        return [
            *names,
            *(f"{PREFIX}{column}/{statistic}" for column in columns for statistic in dict.fromkeys(of_rows)),
        ]

    def _named(self) -> str:
        return (
            f"the sweep's metric '{self._metrics[0]}'"
            if len(self._metrics) == 1
            else f"the sweep's metrics {self._metrics}"
        )

"""The record of a trial: what the files in its folder say, in a line of the sweep's index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.disk.attempts import find_leader
from orchestrator.disk.reports import drop_superseded
from orchestrator.disk.rows.compaction import is_compacted
from orchestrator.disk.rows.recorded_files import warn_lost_rows
from orchestrator.disk.rows.usage import load_usage
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status
from orchestrator.disk.statuses import COMPLETE
from orchestrator.errors import DamagedFile
from orchestrator.tables.best_report import select_comparable, summarize_reports


@dataclass(frozen=True)
class TrialRecord:
    """Summary of a trial's files."""

    name: str
    status: str
    started: str
    ended: str | None
    wall_s: float | None
    values: Mapping[str, Any]
    """Values by dotted path."""
    configuration: int | None
    leader: str | None
    """Trial whose training it shared in its last attempt."""
    stopped: Sequence[str]
    error: str | None
    best: Mapping[str, Any]
    """Metrics and epoch of the best report by the sweep's first metric; empty if there is none."""
    diverged: str
    """Description of a divergence; empty if there is none."""
    last: Mapping[str, Any]
    """Last reported value of each metric."""
    reports: int
    """Number of reports, without superseded ones."""
    compared: Mapping[str, Sequence[Any]]
    """Columns of the reports that have all of the sweep's metrics: these metrics and `samples`."""
    reported: Sequence[str]
    """Time of each attempt's last report."""
    compacted: bool
    """True once its rows are compacted."""
    usage: Mapping[str, float]
    """Time and memory, as `compute_usage` returns them."""

    @property
    def has_ended(self) -> bool:
        """True if a resume of the sweep does not continue the trial."""
        return self.status in (*COMPLETE, "failed")

    @property
    def compared_reports(self) -> tuple[dict[str, Any], ...]:
        """The reports with all of the sweep's metrics, oldest first."""
        return tuple(
            dict(zip(self.compared, report, strict=True))
            for report in zip(*self.compared.values(), strict=True)
        )

    def get_leader(
        self, records: "Mapping[str, TrialRecord | DamagedFile]"
    ) -> "TrialRecord | DamagedFile | None":
        """Return the record of the trial whose training it shared."""
        return records.get(self.leader) if self.leader else None

    @classmethod
    def read(cls, folder: RunFolder, objectives: Sequence[tuple[str, str]]) -> "TrialRecord":
        """Read a trial's folder. Raises DamagedFile."""
        metadata = folder.read_metadata()
        attempts = folder.read_attempts()
        lines = folder.read_reports()
        reports = drop_superseded(lines, attempts)
        metrics = [metric for metric, _ in objectives]
        summary = summarize_reports(reports, objectives[0], metrics)
        last: dict[str, Any] = {}
        for report in reports:
            last.update(report)
        if metadata.status in COMPLETE:
            warn_lost_rows(folder.storage, attempts)
        return cls(
            name=folder.name,
            status=find_status(folder, metadata),
            started=metadata.started,
            ended=metadata.ended,
            wall_s=metadata.wall_s,
            values=metadata.trial_settings.values,
            configuration=metadata.trial_settings.configuration,
            leader=find_leader(attempts),
            stopped=metadata.stopped,
            error=metadata.error,
            best=_select(summary.best or {}, (metrics[0], "epoch")),
            diverged=str(summary.divergence or ""),
            last=_select(last, metrics),
            reports=len(reports),
            compared=_make_columns(select_comparable(reports, metrics), (*metrics, "samples")),
            reported=_list_last_times(lines),
            compacted=is_compacted(folder.storage),
            usage=load_usage(folder.storage, attempts),
        )


def _select(report: Mapping[str, Any], others: Sequence[str]) -> dict[str, Any]:
    """Return the metrics of a report, and some other entries."""
    return {name: value for name, value in report.items() if "/" in name or name in others}


def _make_columns(
    reports: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[Any]]:
    columns = {}
    for name in names:
        columns[name] = [report.get(name, 0) for report in reports]
    return columns


def _list_last_times(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the time of the last report of each attempt."""
    times = {line["attempt"]: line["time"] for line in lines if "time" in line}
    return [*times.values()]

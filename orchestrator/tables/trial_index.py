"""A sweep's index: a file with one line per finished trial, so that a table need not open thousands
of folders.

Only the driver writes it. A resume first removes the trials that will run again, so a line never
changes. Trials without a line are read from their folders, so the index may be incomplete or
missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.lease import check_lease
from orchestrator.disk.metadata import COMPLETE
from orchestrator.disk.reports import drop_superseded
from orchestrator.disk.rows.compaction import is_compacted
from orchestrator.disk.rows.recorded_files import COMPACTED, open_parquet, warn_lost_rows
from orchestrator.disk.rows.usage import compute_usage, read_stored_usage
from orchestrator.disk.rows.valid_rows import open_valid_rows
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import DamagedFile, StorageError
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import format_file, format_line, parse_lines
from orchestrator.tables.best_report import find_best_report, find_divergence

INDEX = "trials.jsonl"
_BATCH = 16
"""The driver rewrites the index once this many more trials have ended."""
_SHARE = 20
"""In a large sweep it does so once one _SHARE-th of the trials in the index have ended."""


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
        compared = [report for report in reports if report.keys() >= {*metrics}]
        best = find_best_report(compared, *objectives[0]) or {}
        last: dict[str, Any] = {}
        for report in reports:
            last.update(report)
        if metadata.status in COMPLETE:
            warn_lost_rows(folder.storage, attempts)
        return cls(
            name=folder.name,
            status=folder.find_status(metadata),
            started=metadata.started,
            ended=metadata.ended,
            wall_s=metadata.wall_s,
            values=metadata.values,
            configuration=metadata.configuration,
            leader=find_leader(attempts),
            stopped=metadata.stopped,
            error=metadata.error,
            best=_select(best, (metrics[0], "epoch")),
            diverged=str(find_divergence(reports, metrics[0]) or ""),
            last=_select(last, metrics),
            reports=len(reports),
            compared=_make_columns(compared, (*metrics, "samples")),
            reported=_list_last_times(lines),
            compacted=is_compacted(folder.storage),
            usage=load_usage(folder.storage, attempts),
        )


def find_leader(attempts: Sequence[Attempt]) -> str | None:
    leader = attempts[-1].leader if attempts else None
    return leader.trial if leader else None


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


def load_usage(trial: Storage, attempts: Sequence[Attempt]) -> Mapping[str, float]:
    """Return a trial's own usage, without its leader's training. Raises DamagedFile."""
    with suppress(FileNotFoundError), open_parquet(trial, COMPACTED["rows"]) as parquet:
        stored = read_stored_usage(parquet, attempts)
        if stored:
            return stored
    without_leader = [replace(attempt, leader=None) for attempt in attempts]
    return compute_usage(open_valid_rows(trial, without_leader))


class TrialIndex:
    """Trials of a sweep, from the index or their folders. `objectives` are pairs of a metric and
    `max` or `min`."""

    def __init__(self, sweep: RunFolder, objectives: Sequence[tuple[str, str]]) -> None:
        self._sweep = sweep.storage
        self._trials = sweep.storage / "trials"
        self._objectives = [(metric, mode) for metric, mode in objectives]
        self._header = format_file({"objectives": self._objectives}, None)
        self._ended: list[str] = []
        self._count = 0

    def records(self) -> dict[str, TrialRecord | DamagedFile]:
        """Return all trials by name, in order; a DamagedFile for one that cannot be read."""
        names = self._trials.names()
        records: dict[str, TrialRecord | DamagedFile | None] = {**self.stored()}
        others = [name for name in names if name not in records]
        records.update(zip(others, self._trials.map(self._read, others), strict=True))

        started = {}
        for name in names:
            record = records[name]
            if record is not None:
                started[name] = record
        return started

    def stored(self) -> dict[str, TrialRecord]:
        """Return the trials in the index by name; none if it is for other metrics. Does not open
        trial folders."""
        try:
            header, _, lines = self._sweep.read(INDEX).partition(b"\n")
        except FileNotFoundError:
            return {}
        if header != self._header.encode():
            return {}
        records = parse_lines(lines, str(self._sweep / INDEX), _read_line, first=2)
        return {record.name: record for record in records}

    def keep(self, trial: str) -> None:
        """Add a trial that has ended. Called in the driver. If the storage fails, the trial's
        folder has everything."""
        self._ended.append(trial)
        if len(self._ended) < max(_BATCH, self._count // _SHARE):
            return
        ended = [record for record in self._trials.map(self._read, self._ended) if record]
        with suppress(StorageError):
            self.write([*self.stored().values(), *ended])
        self._ended = []

    def write(self, trials: Iterable[TrialRecord | DamagedFile]) -> None:
        """Rewrite the index with the trials that have ended. Called in the driver."""
        check_lease(self._sweep.path)
        lines = [
            format_line(vars(record))
            for record in trials
            if isinstance(record, TrialRecord) and record.has_ended
        ]
        self._sweep.write(INDEX, "".join([f"{self._header}\n", *lines]))
        self._count = len(lines)

    def _read(self, name: str) -> TrialRecord | DamagedFile | None:
        """Read a trial from its folder; None if it has not started."""
        folder = RunFolder(self._trials, name)
        if not folder.exists():
            return folder.find_lost_metadata()
        try:
            return TrialRecord.read(folder, self._objectives)
        except DamagedFile as error:
            return error


def _read_line(entries: Any) -> TrialRecord:
    if not isinstance(entries, dict) or entries.keys() != {
        field.name for field in fields(TrialRecord)
    }:
        raise ValueError("it does not describe a trial")
    return TrialRecord(**entries)

"""A sweep's index: a row for each trial that ended, so that a sweep's table need not open thousands of folders.

The folders are the truth, and the index a cache. On a disk a row is valid while the trial's main files are unchanged.
On an object store that would be a request for each trial; there a row is valid unless the trial was resumed since,
which leaves a mark in the index. Any other trial is read from its folder, so the index may be missing, damaged,
outdated, or written by several processes.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from pyarrow import ArrowException

from orchestrator.errors import DamagedFile, StorageError
from orchestrator.records.metadata import Attempt
from orchestrator.records.reports import counted_reports
from orchestrator.records.run_driver import status_of
from orchestrator.records.run_folder import ENDED, INDEX, REOPENED, RunFolder
from orchestrator.stats.aggregate.best_report import best_report, divergence
from orchestrator.stats.aggregate.usage import stored_usage, usage
from orchestrator.stats.read.counted_rows import counted_rows
from orchestrator.stats.read.query import Rows
from orchestrator.stats.read.recorded_files import COMPACTED, warn_lost_rows
from orchestrator.stats.write.compaction import is_compacted
from orchestrator.storage import FileState, Storage

_FILES = ("run.json", "metrics.jsonl", COMPACTED["rows"])
"""Files of a trial on a disk that must be unchanged."""
_BATCH = 16
"""Ended trials that are read together."""
_SHARE = 20
"""A new file is written with each twentieth more of trials, so that there are few files."""


@dataclass(frozen=True)
class TrialRecord:
    """A trial, as its files describe it."""

    name: str
    status: str
    started: str
    ended: str | None
    wall_s: float | None
    values: Mapping[str, Any]
    """Dotted path -> value."""
    configuration: int | None
    leader: str | None
    """The trial whose training it shared in its last attempt."""
    stopped: Sequence[str]
    error: str | None
    mistake: bool
    best: Mapping[str, Any]
    """Metrics and epoch of the best report by the sweep's first metric; empty without one."""
    diverged: str
    """Description of a divergence, or empty."""
    last: Mapping[str, Any]
    """Last reported value of each metric."""
    reports: int
    """Number of reports that count."""
    judged: Mapping[str, Sequence[Any]]
    """The reports with all of the sweep's metrics, as columns: these metrics and `samples`."""
    reported: Sequence[str]
    """Time of each attempt's last report."""
    compacted: bool
    """True once its rows are compacted."""
    usage: Mapping[str, float]
    """Time and memory, as `usage` returns."""

    @property
    def is_over(self) -> bool:
        return self.status not in ("running", "lost")

    @property
    def compared_reports(self) -> tuple[dict[str, Any], ...]:
        """The reports with all of the sweep's metrics, oldest first."""
        return tuple(dict(zip(self.judged, report, strict=True)) for report in zip(*self.judged.values(), strict=True))

    @classmethod
    def read(cls, folder: RunFolder, objectives: Sequence[tuple[str, str]]) -> TrialRecord:
        """Read a trial's folder. Raises DamagedFile."""
        metadata, attempts, lines = folder.metadata(), folder.attempts(), folder.reports()
        reports = counted_reports(lines, attempts)
        metrics = [metric for metric, _ in objectives]
        judged = [report for report in reports if all(metric in report for metric in metrics)]
        best = best_report(reports, *objectives[0]) or {}
        if metadata.status in ENDED:
            warn_lost_rows(folder.storage, attempts)
        return cls(
            name=folder.name,
            status=status_of(folder, metadata),
            started=metadata.started,
            ended=metadata.ended,
            wall_s=metadata.wall_s,
            values=metadata.values,
            configuration=metadata.configuration,
            leader=attempts[-1].leader.trial if attempts and attempts[-1].leader else None,
            stopped=metadata.stopped,
            error=metadata.error,
            mistake=metadata.mistake,
            best={name: value for name, value in best.items() if "/" in name or name in (metrics[0], "epoch")},
            diverged=str(divergence(reports, metrics[0]) or ""),
            last={
                name: value for report in reports for name, value in report.items() if "/" in name or name in metrics
            },
            reports=len(reports),
            judged={name: [report.get(name, 0) for report in judged] for name in (*metrics, "samples")},
            reported=[*{line["attempt"]: line["time"] for line in lines if "time" in line}.values()],
            compacted=is_compacted(folder.storage),
            usage=_usage(folder.storage, attempts),
        )


def _usage(trial: Storage, attempts: Sequence[Attempt]) -> Mapping[str, float]:
    """Return what a trial took: from its joined file, or from its rows. Raises DamagedFile."""
    with suppress(FileNotFoundError, ArrowException), trial.open(COMPACTED["rows"]) as file:
        if kept := stored_usage(file, attempts):
            return kept
    return usage(Rows(counted_rows(trial, attempts)))


@dataclass(frozen=True)
class _Row:
    """A trial's record, and the state of the files that it was made from; None for a missing one."""

    record: TrialRecord
    files: Mapping[str, FileState | None]

    def line(self) -> str:
        text = json.dumps({"files": self.files, **vars(self.record)}, separators=(",", ":"))
        return f"{zlib.crc32(text.encode()):08x} {text}\n"


class TrialIndex:
    """The trials of a sweep, from the index or their folders. `objectives` pairs its metrics with `max` or `min`."""

    def __init__(self, sweep: RunFolder, objectives: Sequence[tuple[str, str]]) -> None:
        self._trials, self._storage = sweep.storage / "trials", sweep.storage / INDEX
        self._objectives = [(metric, mode) for metric, mode in objectives]
        self._header = json.dumps(
            {"objectives": self._objectives, "columns": [field.name for field in fields(TrialRecord)]}
        )
        self._ended: list[str] = []
        self._unwritten: list[_Row] = []
        self._written = 0

    def records(self) -> dict[str, TrialRecord | DamagedFile]:
        """Return all trials by name, in order; a DamagedFile for one that cannot be read."""
        parts = self._parts()
        rows, others = self._standing(parts)
        read = dict(zip(others, self._trials.each(self._read, others), strict=True))
        new = [row for row in read.values() if isinstance(row, _Row) and row.record.is_over]
        if len(new) >= max(_BATCH, len(rows) // _SHARE):
            self._write(new)
        trials = sorted({**rows, **read}.items())
        return {name: row.record if isinstance(row, _Row) else row for name, row in trials if row}

    def standing(self) -> dict[str, TrialRecord]:
        """Return the trials with a valid row, by name. Opens no trial's folder."""
        return {name: row.record for name, row in self._standing(self._parts())[0].items()}

    def keep(self, trial: str) -> None:
        """Add a trial that ended. Driver."""
        self._ended.append(trial)
        if len(self._ended) < _BATCH:
            return
        self._unwritten += [
            row for row in self._trials.each(self._read, self._ended) if isinstance(row, _Row) and row.record.is_over
        ]
        self._ended = []
        if len(self._unwritten) >= max(_BATCH, self._written // _SHARE):
            self._write(self._unwritten)
            self._written += len(self._unwritten)
            self._unwritten = []

    def join(self) -> None:
        """Write one file of all trials. Driver, at the sweep's end."""
        parts = self._parts()
        rows, others = self._standing(parts)
        rows |= {
            row.record.name: row
            for row in self._trials.each(self._read, others)
            if isinstance(row, _Row) and row.record.is_over
        }
        if self._write([row for _, row in sorted(rows.items())]):
            self._storage.each(self._storage.delete, parts)

    def _write(self, rows: Sequence[_Row]) -> bool:
        """Write a file of rows, and return whether that succeeded; if not, the folders still have everything."""
        lines = [f"{self._header}\n", *(row.line() for row in rows)]
        with suppress(StorageError):
            self._storage.write(f"{secrets.token_hex(8)}.jsonl", "".join(lines))
            return True
        return False

    def _parts(self) -> dict[str, bytes]:
        names = [name for name in self._storage.names() if name.endswith(".jsonl")]
        return {name: data for name, data in zip(names, self._storage.each(self._part, names), strict=True) if data}

    def _part(self, name: str) -> bytes:
        with suppress(FileNotFoundError):  # joined with others meanwhile
            return self._storage.read(name)
        return b""

    def _rows(self, parts: Mapping[str, bytes]) -> Iterator[_Row]:
        """Yield the rows of some files, but damaged ones and those of other metrics."""
        for data in parts.values():
            header, *lines = data.split(b"\n")
            if header != self._header.encode():
                continue
            for line in lines:
                if line[:8] == b"%08x" % zlib.crc32(line[9:]):
                    entries = json.loads(line[9:])
                    files = {file: state and FileState(*state) for file, state in entries.pop("files").items()}
                    yield _Row(TrialRecord(**entries), files)

    def _standing(self, parts: Mapping[str, bytes]) -> tuple[dict[str, _Row], list[str]]:
        """Return the valid rows by trial, and the trials without one."""
        names, marks = self._trials.names(), {} if self._trials.local else self._storage.files()
        there = {*names}
        holds = self._is_unchanged if self._trials.local else partial(_is_newer, marks)
        rows = {row.record.name: row for row in self._rows(parts) if row.record.name in there and holds(row)}
        return rows, [name for name in names if name not in rows]

    def _is_unchanged(self, row: _Row) -> bool:
        """Return whether a row's files are unchanged."""
        there = f"{self._trials.local}/{row.record.name}"
        return all(known == _on_disk(f"{there}/{file}") for file, known in row.files.items())

    def _read(self, name: str) -> _Row | DamagedFile | None:
        """Read a trial from its folder; None if it has not begun.

        The state of its files comes first, so that a change meanwhile shows.
        """
        folder = RunFolder(self._trials, name)
        files = _files_of(folder.storage)
        if files["run.json"] is None:
            return folder.lost_metadata() if folder.lacks_metadata() else None
        try:
            return _Row(TrialRecord.read(folder, self._objectives), files)
        except DamagedFile as error:
            return error


def _files_of(trial: Storage) -> dict[str, FileState | None]:
    """Return the state of the files by which a row is checked."""
    if trial.local:
        return {name: _on_disk(f"{trial.local}/{name}") for name in _FILES}
    return {"run.json": trial.files().get("run.json")}


def _on_disk(path: str) -> FileState | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return FileState(status.st_size, status.st_mtime)


def _is_newer(marks: Mapping[str, FileState], row: _Row) -> bool:
    """Return whether a trial was not resumed since its row was made, by the store's times, if it has any."""
    written, mark = row.files["run.json"], marks.get(f"{row.record.name}{REOPENED}")
    if written is None or written.modified is None:
        return False
    return mark is None or (mark.modified is not None and written.modified > mark.modified)

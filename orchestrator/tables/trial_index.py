"""A sweep's index: a file with one line per finished trial, so that a table need not open thousands
of folders.

Only the driver writes it. A resume first removes the trials that will run again, so a line never
changes. Trials without a line are read from their folders, so the index may be incomplete or
missing.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from orchestrator.disk.lease import check_lease
from orchestrator.disk.missing_run import find_lost_metadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import DamagedFile, StorageError
from orchestrator.storage.json_files import format_file
from orchestrator.storage.json_lines import format_line, parse_lines
from orchestrator.tables.trial_record import TrialRecord

INDEX = "trials.jsonl"
_BATCH = 16
"""The driver rewrites the index once this many more trials have ended."""
_SHARE = 20
"""In a large sweep it does so once one _SHARE-th of the trials in the index have ended."""


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

    def read(self) -> dict[str, TrialRecord | DamagedFile]:
        """Return all trials by name, in order; a DamagedFile for one that cannot be read."""
        stored = self.read_stored()
        names = self._trials.names()
        others = [name for name in names if name not in stored]
        read = dict(zip(others, self._trials.map(self._read_trial, others), strict=True))

        records: dict[str, TrialRecord | DamagedFile] = {}
        for name in names:
            record = stored[name] if name in stored else read[name]
            if record is not None:
                records[name] = record
        return records

    def read_stored(self) -> dict[str, TrialRecord]:
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
        ended = [record for record in self._trials.map(self._read_trial, self._ended) if record]
        with suppress(StorageError):
            self.write([*self.read_stored().values(), *ended])
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

    def _read_trial(self, name: str) -> TrialRecord | DamagedFile | None:
        """Read a trial from its folder; None if it has not started."""
        folder = RunFolder(self._trials, name)
        if not folder.exists():
            return find_lost_metadata(folder.storage)
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

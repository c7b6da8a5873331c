"""The folder of a run: its metadata, experiment, attempts, reports and log."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hooks.position import Position
from orchestrator.disk import attempts, reports
from orchestrator.disk.attempts import Attempt, Host
from orchestrator.disk.experiment_file import parse_experiment
from orchestrator.disk.info import read_info
from orchestrator.disk.lease import check_lease
from orchestrator.disk.metadata import RunMetadata, Status, check_names, format_now
from orchestrator.disk.missing_run import explain_missing_run
from orchestrator.disk.process import Process
from orchestrator.errors import (
    MISSING,
    ConfigError,
    DamagedFile,
    NewerFormat,
    UsageError,
)
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage import Storage
from orchestrator.storage.json_files import read_json, write_json
from orchestrator.storage.strict_json import format_json, parse_json

DEFAULT_STORAGE = "runs"
EVALUATIONS = "evaluations"
"""Folder with the evaluations of a run, each of which is itself a run folder."""
PREDICTIONS = "predictions"
"""Folder with the predictions that such a run has written."""

INITIAL_FILES = ("experiment.yaml", "source.json", "main.py", "run.json")
"""Files written when a run is created, in order."""

ADVICE = {
    "run.json": (
        "Restore it from a backup. Without it, no command finds the run. The experiment is"
        " still in experiment.yaml, the trained weights in checkpoints/"
    ),
    "experiment.yaml": "Restore it from a backup, or fix it by hand",
    "source.json": "Restore it from a backup, or delete it: then `hookyard resume` reads experiment.yaml",
}
"""Advice for each damaged file."""

_RUNNING: Mapping[str, Any] = {
    "status": "running",
    "stopped": [],
    "error": None,
    "is_user_error": False,
    "metric_missing": False,
    "ended": None,
}
"""Entries of `run.json` that tell an end, in a run that has not ended."""


class RunFolder:
    """The files of one run, for driver and workers. Imports neither ray nor torch.

    The driver owns `run.json`, `experiment.yaml`, `source.json` and `log.txt`; rank 0 writes
    `metrics.jsonl`, `info.json` and the checkpoints; each rank its own files under `stats/`.
    """

    def __init__(self, storage: str | Path | Storage, name: str = "") -> None:
        root = storage if isinstance(storage, Storage) else Storage(storage)
        self.storage = root / name if name else root
        self.name = self.storage.name

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Return a run that exists; raises UsageError otherwise."""
        folder = cls(path)
        folder.storage.reach()
        if folder.exists():
            folder._refuse_newer_format()
            return folder

        if lost := folder.find_lost_metadata():
            raise lost
        raise UsageError(explain_missing_run(folder.storage))

    def _refuse_newer_format(self) -> None:
        """Raise NewerFormat for a run of a later version, none of whose files this version may
        understand."""
        try:
            self.read_metadata()
        except NewerFormat:
            raise
        except DamagedFile:
            pass  # the other files may be intact

    def __str__(self) -> str:
        return str(self.storage)

    @property
    def parent_run(self) -> "RunFolder":
        """The sweep of a trial, or the run of an evaluation."""
        return RunFolder(self.storage.parent.parent)

    @property
    def location(self) -> str:
        """Location including credentials, for other processes; `str` omits them."""
        return self.storage.location

    @property
    def read_interval_s(self) -> float:
        """Seconds between two reads of a run that is running: its rows arrive every second on a
        disk, rarely on an object store."""
        return 1.0 if self.storage.local else 10.0

    def begin(
        self,
        experiment: str,
        source: ExperimentSource | None = None,
        code: str = "",
        **metadata: Any,
    ) -> None:
        """Write the first files of a run, `run.json` last. `code` is the source of a notebook's or
        script's classes."""
        entries = {
            "name": self.name,
            "status": "running",
            "started": format_now(),
            **asdict(Process.current()),
            **metadata,
        }
        check_names(entries)
        _check_as_written(entries)
        self.write_experiment(experiment, source)
        if code:
            self.storage.write("main.py", code)
        self._write_metadata(entries)

    # run.json

    def exists(self) -> bool:
        """Return whether there is a run: `run.json` is the last of its first files."""
        return self.storage.exists("run.json")

    def find_lost_metadata(self) -> DamagedFile | None:
        """Return the error of a run that has lost its `run.json`: it has files besides those of a
        new run."""
        if self.exists() or not self.storage.exists("experiment.yaml"):
            return None
        is_new = all(name.startswith((*INITIAL_FILES, ".")) for name in self.storage.names())
        return None if is_new else self._make_error("run.json")

    def _make_error(self, name: str, reason: str = MISSING) -> DamagedFile:
        return DamagedFile(str(self.storage / name), reason, ADVICE[name])

    def read_metadata(self) -> RunMetadata:
        """Return the content of `run.json`; raises DamagedFile if it is damaged or missing."""
        return self._read_metadata()[0]

    def _read_metadata(self) -> tuple[RunMetadata, dict[str, Any]]:
        try:
            return read_json(
                self.storage,
                "run.json",
                lambda data: (RunMetadata.read(data), dict(data)),
                ADVICE["run.json"],
            )
        except FileNotFoundError:
            raise self._make_error("run.json") from None

    def update(self, **changes: Any) -> None:
        """Change entries of `run.json`; raises DamagedFile."""
        check_names(changes)
        entries = {**self._read_metadata()[1], **changes}
        _check_as_written(entries)
        self._write_metadata(entries)

    def resume(self, **changes: Any) -> None:
        """Record that this process continues the run, and how long it has run before. `changes` are
        other entries."""
        metadata = self.read_metadata()
        seconds = metadata.measure_seconds(self.read_reports())
        resumed = {
            **_RUNNING,
            "resumed": [*metadata.resumed, format_now()],
            "earlier_s": metadata.earlier_s if seconds is None else seconds,
            **asdict(Process.current()),
        }
        self.update(**{**resumed, **changes})

    def _write_metadata(self, entries: Mapping[str, Any]) -> None:
        check_lease(self.storage.path)
        write_json(self.storage, "run.json", entries)

    def end(
        self,
        status: Status,
        *,
        stopped: Sequence[str] = (),
        error: str | None = None,
        is_user_error: bool = False,
        metric_missing: bool = False,
    ) -> None:
        """Record the end of the run, including the entries of `info.json`. All arguments are
        recorded, so that nothing is left of an earlier end."""
        entries: dict[str, Any] = {
            "status": status,
            "stopped": list(stopped),
            "error": error,
            "is_user_error": is_user_error,
            "metric_missing": metric_missing,
            "ended": format_now(),
            "reports": len(self.read_reports()),
        }
        begun = self.read_attempts()
        if begun:
            entries["attempts"] = len(begun)
            entries["ranks"] = begun[-1].world_size
            entries["hosts"] = sorted({host.node for host in begun[-1].hosts})
        info = read_info(self.storage)
        if info is not None:
            entries["info"] = info
        self.update(**entries)

    def read_launch_metadata(self) -> RunMetadata:
        """Return the metadata of the launched command: for a trial of an existing sweep, the
        sweep's metadata."""
        metadata = self.read_metadata()
        has_sweep = metadata.trial and self.parent_run.exists()
        return self.parent_run.read_metadata() if has_sweep else metadata

    # The experiment

    def write_experiment(self, text: str, source: ExperimentSource | None) -> None:
        """Write the resolved experiment, for people to read, and its source, for resuming. Raises
        LeaseLost."""
        check_lease(self.storage.path)
        self.storage.write("experiment.yaml", text)
        if source is not None:
            write_json(self.storage, "source.json", source.record())

    def read_source(self) -> ExperimentSource:
        """Return the experiment as written; without `source.json`, the resolved experiment."""
        try:
            return read_json(
                self.storage, "source.json", ExperimentSource.from_record, ADVICE["source.json"]
            )
        except FileNotFoundError:
            return ExperimentSource.from_data(self.read_experiment())

    def read_experiment(self) -> dict[str, Any]:
        """Return the resolved experiment; raises DamagedFile."""
        try:
            return parse_experiment(self.read_experiment_text())
        except (ConfigError, ValueError) as error:
            raise self._make_error("experiment.yaml", str(error)) from error

    def read_experiment_text(self) -> str:
        """Return the text of `experiment.yaml`; raises DamagedFile."""
        try:
            return self.storage.read("experiment.yaml").decode()
        except FileNotFoundError:
            raise self._make_error("experiment.yaml") from None
        except UnicodeDecodeError as error:
            raise self._make_error("experiment.yaml", str(error)) from None

    # Attempts and reports

    def read_attempts(self) -> list[Attempt]:
        """Return every attempt, oldest first."""
        return attempts.read_attempts(self.storage)

    def begin_attempt(
        self,
        checkpoint: str | None = None,
        position: Position | None = None,
        hosts: Sequence[Host] = (),
        world_size: int = 1,
    ) -> Attempt:
        """Record the start of a new attempt. Called on rank 0."""
        attempt = attempts.begin_attempt(self.storage, checkpoint, position, hosts, world_size)
        reports.end_last_line(self.storage)
        return attempt

    def append_report(self, line: Mapping[str, Any]) -> None:
        """Append a report to `metrics.jsonl`. Called on rank 0."""
        reports.append_report(self.storage, line)

    def read_reports(self) -> list[dict[str, Any]]:
        """Return every intact report, with a warning about the others."""
        metadata = self.read_metadata() if self.exists() else None
        return reports.read_reports(self.storage, metadata)

    def read_current_reports(self) -> list[Mapping[str, Any]]:
        """Return the reports that no later attempt has repeated."""
        return reports.drop_superseded(self.read_reports(), self.read_attempts())

    # The log

    def log(self, text: str) -> None:
        """Append lines to `log.txt`; an empty text appends none."""
        if text:
            self.storage.append("log.txt", text.removesuffix("\n") + "\n")


def _check_as_written(entries: Mapping[str, Any]) -> None:
    """Raise ValueError if `run.json` could not be read with these entries."""
    RunMetadata.read(parse_json(format_json(entries).encode()))

"""The folder of a run: its metadata, experiment, attempts and reports; and the runs in a storage,
also new ones."""

import json
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hooks.position import Position
from orchestrator.disk.checkpoints.index import read_checkpoints, warn_lost_index
from orchestrator.disk.lease import FOLDER as CLAIMS
from orchestrator.disk.lease import Lease, Process, check_lease, is_driven
from orchestrator.disk.metadata import (
    REPORTS,
    Attempt,
    Host,
    RunMetadata,
    check_report,
    drop_superseded,
)
from orchestrator.errors import (
    MISSING,
    ConfigError,
    DamagedFile,
    NewerFormat,
    StorageError,
    UsageError,
)
from orchestrator.experiment.yaml.reader import load_yaml
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import (
    append_line,
    check_mapping,
    log_omission,
    parse_lines,
    read_json,
    validate,
    write_json,
)

DEFAULT_STORAGE = "runs"
EVALUATIONS = "evaluations"
"""Folder with the evaluations of a run, each of which is itself a run folder."""
STATUSES = ("running", "finished", "stopped", "interrupted", "failed", "lost")
COMPLETE = ("finished", "stopped")
"""Statuses after which there is nothing to resume."""
INITIAL_FILES = ("experiment.yaml", "source.json", "main.py", "run.json")
"""Files written when a run is created, in order."""

_log = logging.getLogger("hookyard")

ADVICE = {
    "run.json": (
        "Restore it from a backup. Without it, no command finds the run. The experiment is"
        " still in experiment.yaml, the trained weights in checkpoints/"
    ),
    "experiment.yaml": "Restore it from a backup, or fix it by hand",
    "source.json": "Restore it from a backup, or delete it: then `hookyard resume` reads experiment.yaml",
    "attempt.json": "Restore it from a backup; without it, the rows and reports of this attempt cannot be used",
}
"""Advice for each damaged file."""


@dataclass(frozen=True)
class _Experiment:
    """Fields of a resolved experiment that are read without validating the rest."""

    epochs: int | None = None
    steps: int | None = None
    accumulate: int | str | None = None
    batch_size: int | None = None
    upload_every: float | None = None
    hooks: Mapping[str, Mapping[str, Any] | bool | None] | None = None
    sweep: Mapping[str, Any] | None = None


def now() -> str:
    """Return the current UTC time, to the millisecond."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


@contextmanager
def errors_before_start() -> Iterator[None]:
    """Convert storage errors to UsageErrors while no run has started yet."""
    try:
        yield
    except StorageError as error:
        raise UsageError(f"{error}. Nothing was started.") from error


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
        if not folder.exists():
            if lost := folder.find_lost_metadata():
                raise lost
            is_new = folder.storage.exists("source.json")
            why = (
                "; the process was killed while creating it, and a new run can reuse the name"
                if is_new
                else ""
            )
            raise UsageError(
                f"{folder} is not a run: it has no run.json{why}. `hookyard ls` lists the runs."
            )
        folder._check_format()
        return folder

    def _check_format(self) -> None:
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
    def location(self) -> str:
        """Location including credentials, for other processes; `str` omits them."""
        return self.storage.location

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
            "started": now(),
            **asdict(Process.this()),
            **metadata,
        }
        RunMetadata(**entries)
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

    def _make_error(self, path: str, reason: str = MISSING) -> DamagedFile:
        return DamagedFile(str(self.storage / path), reason, ADVICE[path.rpartition("/")[2]])

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
        metadata, entries = self._read_metadata()
        replace(metadata, **changes)
        self._write_metadata({**entries, **changes})

    def _write_metadata(self, entries: Mapping[str, Any]) -> None:
        check_lease(self.storage.path)
        write_json(self.storage, "run.json", entries)

    def end(self, status: str, **metadata: Any) -> None:
        """Record the end of the run, including the entries of `info.json`."""
        attempts, entries = self.read_attempts(), dict[str, Any]()
        if attempts:
            hosts = sorted({host.node for host in attempts[-1].hosts})
            entries = {"attempts": len(attempts), "ranks": attempts[-1].world_size, "hosts": hosts}
        try:
            with suppress(FileNotFoundError):
                stored = read_json(
                    self.storage, "info.json", check_mapping, "It is left out of run.json."
                )
                entries["info"] = stored["info"]
        except DamagedFile as error:
            _log.warning("%s", error)
        self.update(
            status=status, ended=now(), reports=len(self.read_reports()), **entries, **metadata
        )

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Write the JSON values of `state.info` to `info.json`; `end` copies them to `run.json`.
        Called on rank 0."""
        plain = {}
        for name, value in info.items():
            with suppress(TypeError, ValueError):  # of a tensor, for example
                json.dumps(value)
                plain[name] = value
        if plain:
            write_json(self.storage, "info.json", {"info": plain})

    def read_launch_metadata(self) -> RunMetadata:
        """Return the metadata of the launched command: for a trial of an existing sweep, the
        sweep's metadata."""
        metadata = self.read_metadata()
        sweep = RunFolder(self.storage.parent.parent)
        return sweep.read_metadata() if metadata.trial and sweep.exists() else metadata

    def find_status(self, run: RunMetadata | None = None) -> str:
        """Return the status of `run.json`, or `lost` if the driver is dead."""
        run = run or self.read_metadata()
        driver = run.driver
        if run.status == "running" and driver is not None:
            is_alive = (
                driver.is_alive() if driver.is_visible() else is_driven(self._lease_folder(run))
            )
            return "lost" if is_alive is False else "running"
        # A resume takes the lease seconds before it trains. A trial's lease is its sweep's.
        can_resume = (
            run.status not in ("running", *COMPLETE)
            and not run.trial
            and self.storage.local is not None
        )
        return (
            "running" if can_resume and is_driven(self.storage, other_process=True) else run.status
        )

    def lease(self, *, force: bool = False) -> Lease:
        """Return the lease to drive the run, or a trial's sweep."""
        with errors_before_start():
            return Lease(self._lease_folder(self.read_metadata()), force=force)

    def _lease_folder(self, metadata: RunMetadata) -> Storage:
        return self.storage.parent.parent if metadata.trial else self.storage

    def evaluated_run(self) -> "RunFolder":
        return RunFolder(self.storage.parent.parent)

    # The experiment

    def write_experiment(self, text: str, source: ExperimentSource | None) -> None:
        """Write the resolved experiment, for people to read, and its source, for resuming."""
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
            data = load_yaml(self.read_experiment_text(), "experiment.yaml")
            if data is None:
                raise ValueError("it is empty")
            validate(data, _Experiment)
            return check_mapping(data)
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

    # Attempts

    def read_attempts(self) -> list[Attempt]:
        """Return every attempt, oldest first. An attempt with rows but no attempt.json is skipped
        with a warning."""
        numbers = parse_numbers(self.storage.names("stats"), "attempt=")
        if not numbers and self.storage.exists("stats.parquet"):
            numbers = [0]
        return [attempt for attempt in self.storage.map(self._read_attempt, numbers) if attempt]

    def _read_attempt(self, number: int) -> Attempt | None:
        file = f"stats/attempt={number}/attempt.json"
        try:
            return read_json(self.storage, file, Attempt.read, ADVICE["attempt.json"])
        except FileNotFoundError:
            if self.storage.exists("stats.parquet") or self.storage.names(
                f"stats/attempt={number}"
            ):
                _log.warning("%s", self.make_lost_attempt_error(number))
            return None

    def make_lost_attempt_error(self, number: int) -> DamagedFile:
        return self._make_error(f"stats/attempt={number}/attempt.json")

    def begin_attempt(
        self,
        checkpoint: str | None = None,
        position: Position | None = None,
        hosts: Sequence[Host] = (),
        world_size: int = 1,
    ) -> Attempt:
        """Record the start of a new attempt. Called on rank 0."""
        number = max((attempt.number for attempt in self.read_attempts()), default=-1) + 1
        attempt = Attempt(number, checkpoint, position or Position(), now(), world_size, hosts)
        self.write_attempt(attempt)
        with suppress(FileNotFoundError):
            if not self.storage.read(REPORTS).endswith(b"\n"):  # a kill cut the last report short
                self.storage.append(REPORTS, "\n")
        return attempt

    def write_attempt(self, attempt: Attempt) -> None:
        """Write the file of an attempt. Called on rank 0."""
        write_json(self.storage, f"stats/attempt={attempt.number}/attempt.json", asdict(attempt))

    @staticmethod
    def rank_folder(attempt: int, rank: int) -> str:
        return f"stats/attempt={attempt}/rank={rank}"

    # The rest

    def checkpoint_folder(self, out_dir: str | None = None) -> Storage:
        """Return the folder of the checkpoints: in the run, or under the checkpoint hook's
        `out_dir`."""
        return Storage(out_dir) / self.name if out_dir else self.storage / "checkpoints"

    def find_checkpoint_folder(self) -> Storage:
        """Return the folder of the checkpoints, as configured in the run's experiment."""
        hooks = self.read_experiment().get("hooks")
        checkpoint = hooks.get("checkpoint") if isinstance(hooks, dict) else None
        return self.checkpoint_folder(
            checkpoint.get("out_dir") if isinstance(checkpoint, dict) else None
        )

    def list_checkpoints(self) -> list[str]:
        """Return the stored checkpoints, oldest first; damaged ones are left out with a warning."""
        storage = self.find_checkpoint_folder()
        manifests, errors = read_checkpoints(storage)
        for error in errors.values():
            _log.warning("%s", error)
        if manifests:
            warn_lost_index(storage)
        return [*manifests]

    def log(self, text: str) -> None:
        if text:
            self.storage.append("log.txt", text if text.endswith("\n") else f"{text}\n")

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Append a report to `metrics.jsonl`. Called on rank 0."""
        self.storage.check_present()
        append_line(self.storage, REPORTS, line)

    def read_reports(self) -> list[dict[str, Any]]:
        """Return every intact line of `metrics.jsonl`.

        Warns of damaged lines, and of missing ones of a complete run, but not of a line that a kill
        cut short.
        """
        metadata, path, data = (
            self.read_metadata() if self.exists() else None,
            str(self.storage / REPORTS),
            b"",
        )
        with suppress(FileNotFoundError):
            data = self.storage.read(REPORTS)
        if metadata and metadata.status in COMPLETE:
            missing = (metadata.reports or 0) - data.count(b"\n")
            if data and not data.endswith(b"\n"):
                log_omission(path, "its last line was cut short")
            elif missing > 0:
                log_omission(path, f"{missing} of its {metadata.reports} reports are missing")
        return parse_lines(data, path, check_report)

    def read_current_reports(self) -> list[Mapping[str, Any]]:
        """Return the reports that no later attempt has repeated."""
        return drop_superseded(self.read_reports(), self.read_attempts())


def parse_numbers(names: Sequence[str], prefix: str) -> list[int]:
    """Return the sorted numbers in names such as `rank=3`; other names are ignored."""
    suffixes = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())


def list_run_folders(storage: Storage) -> list[RunFolder]:
    """Return the runs and sweeps in a storage by name; a folder that lost its `run.json` is skipped
    with a warning."""
    folders = [RunFolder(storage, name) for name in storage.names()]
    exists = dict(zip(folders, storage.map(RunFolder.exists, folders), strict=True))
    for folder in folders:
        if not exists[folder] and (lost := folder.find_lost_metadata()):
            _log.warning("%s", lost)
    return [folder for folder in folders if exists[folder]]


def list_runs(storage: str | Path) -> list[tuple[RunFolder, RunMetadata | DamagedFile]]:
    """Return runs and sweeps, damaged ones first, then the oldest; raises UsageError for an
    unreachable storage."""
    root = Storage(storage)
    root.reach()
    folders = [RunFolder(root, name) for name in root.names()]
    results = zip(folders, root.map(_read_metadata, folders), strict=True)
    runs = [(folder, metadata) for folder, metadata in results if metadata is not None]
    return sorted(runs, key=lambda run: "" if isinstance(run[1], DamagedFile) else run[1].started)


def _read_metadata(folder: RunFolder) -> RunMetadata | DamagedFile | None:
    try:
        return folder.read_metadata()
    except DamagedFile as error:
        return error if folder.exists() else folder.find_lost_metadata()


def create_run(
    storage: str | Path | Storage, name: str, experiment: str, **metadata: Any
) -> RunFolder:
    """Create a run; raises UsageError if the name is taken."""
    folder = RunFolder(storage, name)
    check_name_is_free(folder)
    with errors_before_start():
        if folder.exists():
            _log.warning("Replacing %s, which stopped before training began", folder)
            for file in sorted(folder.storage.names(), key="run.json".__eq__):
                if file != CLAIMS:
                    folder.storage.delete(file)
        folder.begin(experiment, **metadata)
    return folder


@errors_before_start()
def check_name_is_free(folder: RunFolder) -> None:
    """Raise UsageError if a new run would overwrite another run, or other files.

    A name can be reused if the process was killed while creating the run, or if the run ended
    before it trained.
    """
    if folder.exists():
        if _is_untrained(folder):
            return
        raise UsageError(_describe_taken_name(folder))
    names = folder.storage.names()
    foreign = [
        name
        for name in names
        if name != CLAIMS
        and not any(name == first or name.startswith(f".{first}.") for first in INITIAL_FILES)
    ]
    if foreign or names == ["experiment.yaml"]:
        content = ", ".join((foreign or names)[:5])
        raise UsageError(
            f"{folder} exists and is not a run: it contains {content}; pass a different --name"
        )


def _describe_taken_name(folder: RunFolder) -> str:
    """Say what can be done about a run that has the name of a new one."""
    path = shlex.quote(str(folder))
    number = "To start a new run, use --if-exists number or another --name"
    replace_it = "--if-exists replace removes this one first"
    python = "In Python, if_exists= and name=."
    try:
        metadata = folder.read_metadata()
    except DamagedFile as error:
        return f"{folder} exists, and {error.file} is damaged: {error.what}\n{number}. {python}"
    if is_driven(folder.storage):
        return f"{folder} exists and is running. To follow it: hookyard watch {path}\n{number}. {python}"
    if metadata.status in COMPLETE:
        return f"{folder} exists and has {metadata.status}.\n{number}; {replace_it}. {python}"
    flag = " --failed" if metadata.sweep and metadata.status == "failed" else ""
    resume = f"To resume it: hookyard resume {path}{flag}"
    if folder.storage.exists("main.py"):
        resume = f"To resume it, call resume({str(folder)!r}) in the script or notebook that defines its task"
    return f"{folder} exists. {resume}\n{number}; {replace_it}. {python}"


def _is_untrained(folder: RunFolder) -> bool:
    """Return whether a run, or all trials of a sweep, ended before the first step."""
    try:
        metadata = folder.read_metadata()
        if folder.find_status(metadata) == "running":
            return False
        trials = list_run_folders(folder.storage / "trials") if metadata.sweep else []
        return not any(map(_has_trained, trials or [folder]))
    except DamagedFile:
        return False


def _has_trained(folder: RunFolder) -> bool:
    metadata = folder.read_metadata()
    if metadata.status in COMPLETE:
        return True
    files = ("metrics.jsonl", "stats.parquet", EVALUATIONS)
    if any(map(folder.storage.exists, files)) or any(
        "/rows-" in name for name in folder.storage.tree("stats")
    ):
        return True
    parent = metadata.continued_from
    names = {name for name in folder.find_checkpoint_folder().names() if name != "index.json"}
    return bool(names - {parent.checkpoint if parent else None})

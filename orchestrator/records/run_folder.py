"""A run on disk: where each thing lies, and who wrote it."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from orchestrator.checkpoint.index import INDEX as INDEX_OF_CHECKPOINTS
from orchestrator.checkpoint.manifest import MANIFEST, position_in, read_manifest
from orchestrator.checkpoint.position import Position
from orchestrator.config.text.source import ExperimentSource
from orchestrator.errors import CheckpointError, DamagedFile, StorageError, UsageError
from orchestrator.records.lease import FOLDER as DRIVERS
from orchestrator.records.lease import check_lease
from orchestrator.records.metadata import Attempt, Host, RunMetadata
from orchestrator.records.process import Process
from orchestrator.records.reports import checked_report
from orchestrator.storage import Storage
from orchestrator.storage.growing import PARTS
from orchestrator.storage.stored_data import append_line, checked, left_out, mapping, read_json, whole_lines, write_json

DEFAULT_STORAGE = "runs"
EVALUATIONS = "evaluations"
"""Where in a run's folder its evaluations lie, each a run's folder too."""
STATUSES = ("running", "finished", "stopped", "interrupted", "failed", "lost")
ENDED = ("finished", "stopped")
"""Statuses after which there is nothing to resume."""
INDEX, REOPENED = "index", ".reopened"
"""Where a sweep keeps what it knows of its trials that are over, and the end of what marks one that was changed
since."""
_FIRST_FILES = ("experiment.yaml", "source.json", "main.py", "run.json")


def now() -> str:
    """Return the time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


_log = logging.getLogger("hookyard")

ADVICE = {
    "run.json": (
        "Put back a copy of it; without one the run is known no more. What it was told to do is in experiment.yaml, and"
        " what it trained in checkpoints/"
    ),
    "experiment.yaml": "Put back a copy of it, or mend it",
    "source.json": "Put back a copy of it, or delete it: then `hookyard resume` goes on from experiment.yaml",
    "attempt.json": "Put back a copy of it; without one nobody knows which of the run's rows and reports count",
}
"""What can be done where a file is damaged."""


@dataclass(frozen=True)
class _Experiment:
    """What is read of a resolved experiment without checking all of it."""

    epochs: int | None = None
    steps: int | None = None
    accumulate: int | str | None = None
    batch_size: int | None = None
    upload_interval_s: float | None = None
    hooks: Mapping[str, Mapping[str, Any] | bool | None] | None = None
    sweep: Mapping[str, Any] | None = None


@contextmanager
def nothing_started() -> Iterator[None]:
    """Within it a storage that refuses makes the call a wrong one: nothing has begun yet."""
    try:
        yield
    except StorageError as error:
        raise UsageError(f"{error}. Nothing was started.") from error


class RunFolder:
    """The files of one run. Imports neither ray nor torch; used by driver and workers alike.

    The driver owns `run.json`, `experiment.yaml`, `source.json` and `log.txt`; rank 0 writes `metrics.jsonl`,
    `info.json` and the checkpoints; each rank its own files under `stats/`.
    """

    def __init__(self, storage: str | Path | Storage, name: str = "") -> None:
        around = storage if isinstance(storage, Storage) else Storage(storage)
        self.storage = around / name if name else around
        self.name = self.storage.name

    def __str__(self) -> str:
        return str(self.storage)

    @property
    def location(self) -> str:
        """With everything it takes to open it in another process; `str` gives what may be shown."""
        return self.storage.location

    @classmethod
    def create(cls, storage: str | Path | Storage, name: str, experiment: str, **metadata: Any) -> RunFolder:
        """Makes a new run; raises UsageError where the name is taken, so that nothing is resumed or lost by
        accident."""
        folder = cls(storage, name)
        folder.refuse_if_taken()
        with nothing_started():
            folder._clear_untrained()
            folder.begin(experiment, **metadata)
        return folder

    @nothing_started()
    def refuse_if_taken(self) -> None:
        """Raise UsageError where a new run would be written over a run, or over what is none.

        What was killed as it began is neither, and a run that ended before it trained gives up its name.
        """
        if self.exists() and self.is_untrained():
            return
        if self.exists():
            raise UsageError(
                f"{self} exists already. To go on with it: hookyard resume {shlex.quote(str(self))}\nTo start another"
                " run beside it, give another name: --name, or name= in Python."
            )
        names = self.storage.names()
        foreign = [
            name
            for name in names
            if name != DRIVERS and not any(name == first or name.startswith(f".{first}.") for first in _FIRST_FILES)
        ]
        if foreign or names == ["experiment.yaml"]:
            there = ", ".join((foreign or names)[:5])
            raise UsageError(
                f"{self} exists already and is no run: it holds {there}, and no run.json. Give another name: --name, or"
                " name= in Python."
            )

    def is_untrained(self) -> bool:
        """Return whether the run ended before its first step: with no row, report or checkpoint of its own."""
        try:
            metadata = self.metadata()
            if metadata.status == "running" and not metadata.is_driver_gone:
                return False
            trials = run_folders(self.storage / "trials")
            return not any(run.has_trained() for run in (trials if metadata.sweep and trials else [self]))
        except DamagedFile:
            return False

    def has_trained(self) -> bool:
        """Return whether the run came to its end, or has a row, report or checkpoint of its own; raise DamagedFile."""
        metadata = self.metadata()
        if metadata.status in ENDED:
            return True
        parts = ("metrics.jsonl", f"{PARTS}/metrics.jsonl", "stats.parquet", EVALUATIONS)
        if any(map(self.storage.exists, parts)) or any("/rows-" in name for name in self.storage.tree("stats")):
            return True
        names = [name for name in self.kept_checkpoints().names() if name != "index.json"]
        parent = metadata.continued_from
        return bool({*names} - {parent["checkpoint"] if parent else None})

    def _clear_untrained(self) -> None:
        """Remove a run that was never trained, its `run.json` last."""
        if not self.exists():
            return
        _log.warning("%s ended before it trained: a new run takes its name, and its files are removed", self)
        for name in sorted(self.storage.names(), key="run.json".__eq__):
            if name != DRIVERS:
                self.storage.delete(name)

    def begin(self, experiment: str, source: ExperimentSource | None = None, code: str = "", **metadata: Any) -> None:
        """Writes the first files of a run, `metadata` as RunMetadata has it; `run.json` comes last, and without it
        there is none. `code` is that of classes that no file has, a notebook's, for people to read."""
        entries = {"name": self.name, "status": "running", "started": now(), **asdict(Process.this()), **metadata}
        RunMetadata(**entries)
        self.write_experiment(experiment, source)
        if code:
            self.storage.write("main.py", code)
        self._write(entries)

    def write_experiment(self, text: str, source: ExperimentSource | None) -> None:
        """Keeps the experiment: in full for people, and as it was written, to go on from."""
        self.storage.write("experiment.yaml", text)
        if source is not None:
            write_json(self.storage, "source.json", source.record())

    def lacks_metadata(self) -> bool:
        """Return whether a run lies here whose `run.json` is gone: there is more than a run's first files."""
        if self.exists() or not self.storage.exists("experiment.yaml"):
            return False
        return not all(name.startswith((*_FIRST_FILES, ".")) for name in self.storage.names())

    def exists(self) -> bool:
        """Whether there is a run: `run.json` is the last of its first files."""
        return self.storage.exists("run.json")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A run that exists; raises UsageError where there is none."""
        folder = cls(path)
        folder.storage.reach()
        if not folder.exists():
            began = (
                "; it was ended as it began, and `hookyard run` may take its name"
                if folder.storage.exists("source.json")
                else ""
            )
            raise UsageError(f"{folder} is no run: it has no run.json{began}. `hookyard ls` lists the runs there are.")
        return folder

    # run.json

    def lost_metadata(self) -> DamagedFile:
        """Return the error that says that `run.json` is gone."""
        return DamagedFile(str(self.storage / "run.json"), "it is gone", ADVICE["run.json"])

    def metadata(self) -> RunMetadata:
        """What `run.json` says."""
        return read_json(self.storage, "run.json", RunMetadata.read, ADVICE["run.json"])

    def _write(self, entries: Mapping[str, Any]) -> None:
        check_lease(self.storage.path)
        write_json(self.storage, "run.json", entries)

    def update(self, **changes: Any) -> None:
        """Changes entries of `run.json`, by their names in RunMetadata."""
        entries = read_json(self.storage, "run.json", _entries, ADVICE["run.json"])
        metadata = RunMetadata.read(entries)
        replace(metadata, **changes)
        if metadata.trial and metadata.status != "running" and self.storage.local is None:
            # What the sweep's index says of it holds no more; on a disk that shows by itself.
            (self.lease_place(metadata) / INDEX).write(f"{metadata.trial}{REOPENED}", b"")
        self._write({**entries, **changes})

    def end(self, status: str, **metadata: Any) -> None:
        """Writes down how the run ended, with what its workers knew of it."""
        reports = len(self.reports())
        self.update(status=status, ended=now(), reports=reports, **self._info(), **self._places(), **metadata)
        for name in self.storage.names(PARTS):
            self.storage.join(name)

    def _info(self) -> dict[str, Any]:
        """What its workers knew of it; nothing where that is damaged, which is said."""
        try:
            return {"info": read_json(self.storage, "info.json", mapping, "It is left out of run.json.")}
        except FileNotFoundError:
            return {}
        except DamagedFile as error:
            _log.warning("%s", error)
            return {}

    def _places(self) -> dict[str, Any]:
        """How many attempts there were, how many ranks the last one had, and on which hosts."""
        attempts = self.attempts()
        hosts = sorted({host.node for host in attempts[-1].hosts}) if attempts else []
        return {"attempts": len(attempts), "ranks": attempts[-1].world_size, "hosts": hosts} if attempts else {}

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Keeps the plain values of `state.info` in `info.json`, until `run.json` has them. Rank 0."""
        plain = {name: value for name, value in info.items() if _is_plain(value)}
        if plain:
            write_json(self.storage, "info.json", plain)

    def source(self) -> ExperimentSource:
        """Return what was written of the run's experiment; where `source.json` is gone, the experiment in full."""
        try:
            return read_json(self.storage, "source.json", ExperimentSource.from_record, ADVICE["source.json"])
        except FileNotFoundError:
            return ExperimentSource.from_data(self.experiment())

    def experiment(self) -> dict[str, Any]:
        """What `experiment.yaml` says: the resolved experiment; raises DamagedFile."""
        try:
            data = yaml.safe_load(self.experiment_text())
            if data is None:
                raise ValueError("it is empty")
            checked(data, _Experiment)
            return mapping(data)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise DamagedFile(str(self.storage / "experiment.yaml"), str(error), ADVICE["experiment.yaml"]) from error

    def experiment_text(self) -> str:
        """The text of `experiment.yaml`; raises DamagedFile where it is gone, or no text."""
        try:
            return self.storage.read("experiment.yaml").decode()
        except FileNotFoundError:
            reason = "it is gone"
        except UnicodeDecodeError as error:
            reason = str(error)
        raise DamagedFile(str(self.storage / "experiment.yaml"), reason, ADVICE["experiment.yaml"])

    def evaluated_run(self) -> RunFolder:
        """Of an evaluation, the run whose checkpoint it measures."""
        return RunFolder(self.storage.parent.parent)

    def launched(self) -> RunMetadata:
        """What is said of the launch: its own, or of a trial its sweep's, where that is still around it."""
        metadata = self.metadata()
        around = RunFolder(self.storage.parent.parent)
        return around.metadata() if metadata.trial and around.exists() else metadata

    def lease_place(self, metadata: RunMetadata) -> Storage:
        """Where it is told who drives it."""
        return self.storage.parent.parent if metadata.trial else self.storage

    # Attempts

    def attempts(self) -> list[Attempt]:
        """Return every attempt, oldest first.

        One that was killed before it was written down is none; one that made rows, and whose file is gone, is left out
        with a warning.
        """
        numbers = numbered(self.storage.names("stats"), "attempt=")
        if not numbers and self.storage.exists("stats.parquet"):
            numbers = [0]
        return [attempt for attempt in self.storage.each(self._attempt, numbers) if attempt]

    def _attempt(self, number: int) -> Attempt | None:
        file = f"stats/attempt={number}/attempt.json"
        try:
            return read_json(self.storage, file, Attempt.read, ADVICE["attempt.json"])
        except FileNotFoundError:
            if self.storage.exists("stats.parquet") or self.storage.names(f"stats/attempt={number}"):
                _log.warning("%s", self.lost_attempt(number))
            return None

    def lost_attempt(self, number: int) -> DamagedFile:
        """Return the error that says that the `attempt.json` of an attempt is gone."""
        file = self.storage / f"stats/attempt={number}/attempt.json"
        return DamagedFile(str(file), "it is gone", ADVICE["attempt.json"])

    def begin_attempt(
        self,
        checkpoint: str | None = None,
        position: Position | None = None,
        hosts: Sequence[Host] = (),
        world_size: int = 1,
    ) -> Attempt:
        """Numbers a new attempt and writes down where it begins. Rank 0."""
        number = max((attempt.number for attempt in self.attempts()), default=-1) + 1
        attempt = Attempt(number, checkpoint, position or Position(), now(), world_size, hosts)
        self.write_attempt(attempt)
        self._mend_metrics()
        return attempt

    def write_attempt(self, attempt: Attempt) -> None:
        """Writes down what is known of an attempt. Rank 0."""
        write_json(self.storage, f"stats/attempt={attempt.number}/attempt.json", attempt.entries())

    @staticmethod
    def rank_folder(attempt: int, rank: int) -> str:
        """Where a rank's rows of an attempt lie."""
        return f"stats/attempt={attempt}/rank={rank}"

    # The rest

    def checkpoints(self, out_dir: str | None = None) -> Storage:
        """Where the checkpoints lie: in the run, or under the checkpoint hook's `out_dir`."""
        return Storage(out_dir) / self.name if out_dir else self.storage / "checkpoints"

    def kept_checkpoints(self) -> Storage:
        """Where the checkpoints lie, as the run's experiment says."""
        hooks = self.experiment().get("hooks")
        checkpoint = hooks.get("checkpoint") if isinstance(hooks, dict) else None
        return self.checkpoints(checkpoint.get("out_dir") if isinstance(checkpoint, dict) else None)

    def checkpoint_names(self) -> list[str]:
        """The stored checkpoints, oldest first; one whose manifest is damaged is left out, which is said."""
        storage = self.kept_checkpoints()
        names = [name for name in storage.names() if not name.startswith(".")]
        positions = dict(zip(names, storage.each(partial(_position, storage), names), strict=True))
        kept = {name: position for name, position in positions.items() if position}
        if kept:
            tell_lost_index(storage)
        return sorted(kept, key=lambda name: (kept[name].step, kept[name].stage))

    def log(self, text: str) -> None:
        """Adds text to `log.txt`."""
        if text:
            self.storage.append("log.txt", text if text.endswith("\n") else f"{text}\n")

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add one report to `metrics.jsonl`; its place in the training makes no two lines equal. Rank 0."""
        append_line(self.storage, "metrics.jsonl", line)

    def _mend_metrics(self) -> None:
        """End a line that a kill cut short, and remove copies of lines."""
        with suppress(FileNotFoundError):
            data = self.storage.read_appended("metrics.jsonl")
            lines = [line for line in data.split(b"\n") if line.strip()]
            if len(lines) > len(once := dict.fromkeys(lines)):
                self.storage.join("metrics.jsonl")
                self.storage.write("metrics.jsonl", b"\n".join([*once, b""]))
            elif not data.endswith(b"\n"):
                self.storage.append("metrics.jsonl", "\n")

    def reports(self) -> list[dict[str, Any]]:
        """Every line of `metrics.jsonl`; those cut short by a kill are left out, and those that are damaged, which is
        said."""
        try:
            lines = self.storage.read_appended("metrics.jsonl")
        except FileNotFoundError:
            lines = b""
        place = str(self.storage / "metrics.jsonl")
        if not lines.endswith(b"\n") and self.exists() and (run := self.metadata()).status in ENDED:
            if lines:
                left_out(place, "its last line was cut short")
            elif run.reports:
                left_out(place, f"its {run.reports} reports are gone")
        return whole_lines(lines, place, checked_report)


def _entries(data: Any) -> dict[str, Any]:
    """Return what `run.json` says as it stands there; raises ValueError."""
    RunMetadata.read(data)
    return dict(data)


def _position(checkpoints: Storage, name: str) -> Position | None:
    """How far a run had come at a checkpoint; None where there is none, or it is damaged, which is said."""
    try:
        return position_in(read_manifest(checkpoints, name))
    except FileNotFoundError:
        tell_lost_manifest(checkpoints, name)
        return None
    except (DamagedFile, CheckpointError) as error:
        _log.warning("%s", error)
        return None


def tell_lost_manifest(checkpoints: Storage, name: str) -> None:
    """Warn where a checkpoint is there without its manifest; elsewhere than on a disk it may be on its way."""
    if checkpoints.local and checkpoints.exists(f"{name}/model.pt"):
        _log.warning("the checkpoint %s is damaged: its %s is gone", checkpoints / name, MANIFEST)


def tell_lost_index(checkpoints: Storage) -> None:
    """Warn where there are checkpoints without their index."""
    if checkpoints.exists(INDEX_OF_CHECKPOINTS):
        return
    if any(checkpoints.exists(f"{name}/{MANIFEST}") for name in checkpoints.names()):
        _log.warning("%s is gone: no checkpoint is known as the best", checkpoints / INDEX_OF_CHECKPOINTS)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, str | int | float)


def numbered(names: Sequence[str], prefix: str) -> list[int]:
    """The numbers in the names of folders such as `rank=3`, in order; other names are not ours."""
    return sorted(
        int(name.removeprefix(prefix))
        for name in names
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
    )


def run_folders(around: Storage) -> list[RunFolder]:
    """The runs and sweeps in a storage, by name."""
    folders = [RunFolder(around, name) for name in around.names()]
    there = dict(zip(folders, around.each(RunFolder.exists, folders), strict=True))
    for folder in folders:
        if not there[folder] and folder.lacks_metadata():
            _log.warning("%s", folder.lost_metadata())
    return [folder for folder in folders if there[folder]]


def list_runs(storage: str | Path) -> list[tuple[RunFolder, RunMetadata | DamagedFile]]:
    """The runs and sweeps in a storage with their metadata, newest last, and first those whose `run.json` is damaged;
    raises UsageError where it does not answer."""
    around = Storage(storage)
    around.reach()
    folders = [RunFolder(around, name) for name in around.names()]
    told = zip(folders, around.each(_metadata_or_damage, folders), strict=True)
    found = [(folder, metadata) for folder, metadata in told if metadata is not None]
    return sorted(found, key=lambda entry: "" if isinstance(entry[1], DamagedFile) else entry[1].started)


def _metadata_or_damage(folder: RunFolder) -> RunMetadata | DamagedFile | None:
    try:
        return folder.metadata()
    except FileNotFoundError:
        return folder.lost_metadata() if folder.lacks_metadata() else None
    except DamagedFile as error:
        return error

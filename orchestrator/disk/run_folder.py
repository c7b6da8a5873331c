"""The folder of a run, with its metadata, experiment, attempts, reports and log."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hooks.position import Position
from orchestrator.disk import attempts, experiment_file, reports
from orchestrator.disk.attempts import Attempt, Host
from orchestrator.disk.metadata import NOTHING_KNOWN, LaunchMetadata, RunMetadata
from orchestrator.disk.missing_run import explain_missing_run, find_lost_metadata
from orchestrator.disk.run_file import RunFile
from orchestrator.errors import DamagedFile, NewerFormat, UsageError
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage import Storage

DEFAULT_STORAGE = "runs"


class RunFolder:
    """The files of one run, for driver and workers. Imports neither ray nor torch.

    The driver owns `run.json`, `experiment.yaml`, `source.json` and `log.txt`; rank 0 writes
    `metrics.jsonl`, `info.json` and the checkpoints; each rank its own files under `stats/`.
    """

    def __init__(self, storage: str | Path | Storage, name: str = "") -> None:
        root = storage if isinstance(storage, Storage) else Storage(storage)
        self.storage = root / name if name else root
        self.name = self.storage.name
        self.run_file = RunFile(self.storage)
        """The run's metadata, to write."""

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Return a run that exists; raises UsageError otherwise."""
        folder = cls(path)
        folder.storage.reach()
        if folder.exists():
            folder._refuse_newer_format()
            return folder

        lost = find_lost_metadata(folder.storage)
        if lost:
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
    def location(self) -> str:
        """Location including credentials, for other processes; `str` omits them."""
        return self.storage.location

    def begin(
        self,
        experiment: str,
        launch: LaunchMetadata = NOTHING_KNOWN,
        source: ExperimentSource | None = None,
        code: str = "",
    ) -> None:
        """Write the first files of a run, `run.json` last.

        Args:
            experiment: Text of `experiment.yaml`.
            launch: What is known of the run.
            source: The experiment as written.
            code: Source of the classes of a notebook or a script.
        """
        self.write_experiment(experiment, source)
        if code:
            self.storage.write("main.py", code)
        self.run_file.begin(launch)

    def exists(self) -> bool:
        """Return whether there is a run: `run.json` is the last of its first files."""
        return self.run_file.exists()

    def read_metadata(self) -> RunMetadata:
        """Return the content of `run.json`; raises DamagedFile if it is damaged or missing."""
        return self.run_file.read()

    # The experiment

    def write_experiment(self, text: str, source: ExperimentSource | None) -> None:
        """Write the resolved experiment and its source; raises LeaseLost."""
        experiment_file.write_experiment(self.storage, text, source)

    def read_source(self) -> ExperimentSource:
        """Return the experiment as written; without `source.json`, the resolved experiment. Raises
        DamagedFile."""
        return experiment_file.read_source(self.storage)

    def read_experiment(self) -> dict[str, Any]:
        """Return the resolved experiment; raises DamagedFile."""
        return experiment_file.read_experiment(self.storage)

    def read_experiment_text(self) -> str:
        """Return the text of `experiment.yaml`; raises DamagedFile."""
        return experiment_file.read_experiment_text(self.storage)

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

"""The file `run.json` of a run: its metadata, which its driver writes."""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.disk.attempts import read_attempts
from orchestrator.disk.info import read_info
from orchestrator.disk.lease import check_lease
from orchestrator.disk.metadata import LaunchMetadata, RunMetadata
from orchestrator.disk.process import Process
from orchestrator.disk.reports import read_reports
from orchestrator.disk.statuses import Status
from orchestrator.disk.timestamps import format_now
from orchestrator.errors import MISSING, DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.json_files import read_json, write_json
from orchestrator.storage.strict_json import format_json, parse_json

RUN_FILE = "run.json"
ADVICE = (
    "Restore it from a backup. Without it, no command finds the run. The experiment is still in"
    " experiment.yaml, the trained weights in checkpoints/"
)
"""Advice for a damaged `run.json`."""


class RunFile:
    """The metadata of a run on disk. Whatever writes it raises LeaseLost if another driver has taken
    over the run, and DamagedFile if the file cannot be read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def exists(self) -> bool:
        return self._storage.exists(RUN_FILE)

    def read(self) -> RunMetadata:
        """Return the metadata; raises DamagedFile if the file is damaged or missing."""
        try:
            return read_json(self._storage, RUN_FILE, RunMetadata.read, ADVICE)
        except FileNotFoundError:
            raise make_lost_metadata_error(self._storage) from None

    def begin(self, launch: LaunchMetadata) -> None:
        """Record that this process begins the run."""
        metadata = RunMetadata(
            **vars(launch),
            name=self._storage.name,
            status="running",
            started=format_now(),
            driver=Process.current(),
        )
        self.replace(metadata)

    def replace(self, metadata: RunMetadata) -> None:
        """Write other metadata; raises ValueError if they could not be read again."""
        check_lease(self._storage.path)
        entries = metadata.record()
        RunMetadata.read(parse_json(format_json(entries).encode()))
        write_json(self._storage, RUN_FILE, entries)

    def resume(self, metadata: RunMetadata, earlier_s: float | None = None) -> None:
        """Record that this process continues the run. Nothing is left of an earlier end.

        Args:
            metadata: The run's metadata, perhaps with changes.
            earlier_s: Seconds that it has run before; by default until its end or its last report.
        """
        if earlier_s is None:
            earlier_s = metadata.measure_seconds(read_reports(self._storage, metadata))
        if earlier_s is None:
            earlier_s = metadata.earlier_s
        resumed = replace(
            metadata,
            status="running",
            driver=Process.current(),
            resumed=[*metadata.resumed, format_now()],
            earlier_s=earlier_s,
            ended=None,
            attempts=None,
            ranks=None,
            hosts=(),
            reports=None,
            best=None,
            diverged="",
            stopped=(),
            error=None,
            is_user_error=False,
            metric_missing=False,
        )
        self.replace(resumed)

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
        metadata = self.read()
        ended = replace(
            metadata,
            status=status,
            stopped=stopped,
            error=error,
            is_user_error=is_user_error,
            metric_missing=metric_missing,
            ended=format_now(),
            reports=len(read_reports(self._storage, metadata)),
        )
        attempts = read_attempts(self._storage)
        if attempts:
            last = attempts[-1]
            ended = replace(
                ended,
                attempts=len(attempts),
                ranks=last.world_size,
                hosts=sorted({host.node for host in last.hosts}),
            )
        info = read_info(self._storage)
        if info is not None:
            ended = replace(ended, info=info)
        self.replace(ended)


def make_lost_metadata_error(storage: Storage) -> DamagedFile:
    """Return the error of a run that has lost its `run.json`."""
    return DamagedFile(str(storage / RUN_FILE), MISSING, ADVICE)

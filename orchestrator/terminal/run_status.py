"""The current state of a run, read from its files as they grow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import time
from typing import Any

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.hang_reports import find_hang
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status
from orchestrator.disk.statuses import COMPLETE
from orchestrator.terminal.estimates import estimate_progress
from orchestrator.terminal.live_attempt import AttemptView, LiveAttempt
from orchestrator.terminal.run_files import RunFiles
from orchestrator.terminal.run_view import RunProgress, RunView
from orchestrator.units import format_rough_duration


class LiveRun:
    """Incremental reader of a run's files, for any process that can access the run's storage."""

    def __init__(
        self, folder: RunFolder, clock: Callable[[], float] = time, *, diagnose: bool = True
    ) -> None:
        """Prepare to read a run.

        Args:
            folder: Folder of the run.
            clock: Returns Unix time.
            diagnose: False for views without findings.
        """
        self.folder = folder
        self._clock = clock
        self._diagnose = diagnose
        self._files = RunFiles(folder)
        self._attempt: LiveAttempt | None = None
        """Reader of the newest attempt."""

    def read_metadata(self) -> RunMetadata:
        """Return the content of `run.json`, and read new reports."""
        return self._files.read_metadata()

    def list_reports(self) -> list[Mapping[str, Any]]:
        """Return the valid reports that `read_metadata` or `read_view` has read so far."""
        return self._files.list_reports(self.folder.read_attempts())

    def read_view(self) -> RunView:
        """Read what has changed since the last call, and return the state of the run."""
        metadata = self.read_metadata()
        status = find_status(self.folder, metadata)
        attempts = self.folder.read_attempts()
        reports = self._files.list_reports(attempts)

        live = self._follow_attempt(attempts)
        experiment = live.experiment if live else self.folder.read_experiment()
        seen = AttemptView()
        if live:
            seen = live.read_view(attempts, reports, has_ended=status in COMPLETE)

        attempt = attempts[-1] if attempts else None
        reached = _find_position(attempt, seen)
        progress = estimate_progress(experiment, attempt, reached, self._clock())
        return RunView(
            name=self.folder.name,
            path=str(self.folder),
            status=status,
            started=metadata.started,
            ended=metadata.ended,
            error=metadata.error,
            stopped=tuple(metadata.stopped),
            progress=_fit_to_status(progress, status),
            speed=seen.speed,
            reports=len(reports),
            report=reports[-1] if reports else {},
            attempts=len(attempts),
            resumed_from=attempt.checkpoint if attempt else None,
            row_age_s=seen.row_age_s,
            ranks=seen.ranks,
            findings=seen.findings,
            notice=self._find_notice(status, seen.row_age_s, metadata),
        )

    def _follow_attempt(self, attempts: Sequence[Attempt]) -> LiveAttempt | None:
        """Return the reader of the newest attempt; None if no attempt has begun."""
        if not attempts:
            return None

        number = attempts[-1].number
        if self._attempt is None or self._attempt.number != number:
            self._attempt = LiveAttempt(self.folder, number, self._clock, diagnose=self._diagnose)
        return self._attempt

    def _find_notice(
        self, status: str, row_age_s: float | None, metadata: RunMetadata
    ) -> str | None:
        if status == "lost":
            driver = f"its driver ({metadata.driver})"
            last = "it wrote no row"
            if row_age_s is not None:
                last = f"its last row is {format_rough_duration(row_age_s)} old"
            return f"the run is dead: {driver} is gone; {last}"

        hang = find_hang(self.folder) if status == "running" else None
        return str(hang) if hang else None


def _find_position(attempt: Attempt | None, seen: AttemptView) -> RunProgress:
    """Return how far a run has come, by its newest row or else by the start of its attempt."""
    start = RunProgress()
    if attempt and attempt.checkpoint:
        position = attempt.position
        start = RunProgress(epoch=position.epoch, step=position.step, iteration=position.iteration)
    if seen.newest is None:
        return start
    return replace(seen.newest, iteration=seen.newest.iteration or start.iteration)


def _fit_to_status(progress: RunProgress, status: str) -> RunProgress:
    """Return the progress without what only a running run has."""
    if status == "finished":
        progress = replace(progress, share=1.0)
    if status != "running":
        progress = replace(progress, phase=None, eta_s=None)
    return progress

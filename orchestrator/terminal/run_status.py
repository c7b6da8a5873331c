"""The current state of a run, read from its files as they grow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import time
from typing import Any

import pandas as pd

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.hang_reports import find_hang
from orchestrator.disk.metadata import COMPLETE, RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status
from orchestrator.doctor import Finding
from orchestrator.tables.growing_files import AttemptTail, RankTail
from orchestrator.terminal.estimates import compute_speed, estimate_progress
from orchestrator.terminal.rank_comparison import RankComparison
from orchestrator.terminal.run_files import RunFiles
from orchestrator.terminal.run_view import RankView, RunProgress, RunView
from orchestrator.units import format_rough_duration


@dataclass(frozen=True)
class _LiveAttempt:
    """The experiment of an attempt, its last rows, and how its ranks compare in them."""

    number: int
    experiment: Mapping[str, Any]
    """A resume may have edited it."""
    tail: AttemptTail
    comparison: RankComparison


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
        self._attempt: _LiveAttempt | None = None
        """Readers of the newest attempt."""

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
        rows = pd.DataFrame()
        ranks: Sequence[RankView] = ()
        tails: Mapping[int, RankTail] = {}
        findings: Sequence[Finding] = ()
        if live:
            self._read_rows(live, attempts, reports, has_ended=status in COMPLETE)
            rows = live.tail.training_rows().to_pandas()
            ranks = self._make_rank_views(live, rows)
            tails = live.tail.ranks
            findings = live.comparison.findings

        ages = [rank.row_age_s for rank in ranks if rank.row_age_s is not None]
        row_age_s = min(ages, default=None)
        attempt = attempts[-1] if attempts else None
        return RunView(
            name=self.folder.name,
            path=str(self.folder),
            status=status,
            started=metadata.started,
            ended=metadata.ended,
            error=metadata.error,
            stopped=tuple(metadata.stopped),
            progress=self._find_progress(status, experiment, attempt, tails),
            speed=compute_speed(rows),
            reports=len(reports),
            report=reports[-1] if reports else {},
            attempts=len(attempts),
            resumed_from=attempt.checkpoint if attempt else None,
            row_age_s=row_age_s,
            ranks=ranks,
            findings=findings,
            notice=self._find_notice(status, row_age_s, metadata),
        )

    def _follow_attempt(self, attempts: Sequence[Attempt]) -> _LiveAttempt | None:
        """Return the readers of the newest attempt; None if no attempt has begun."""
        if not attempts:
            return None

        number = attempts[-1].number
        if self._attempt is None or self._attempt.number != number:
            tail = AttemptTail(self.folder.storage, f"stats/attempt={number}")
            comparison = RankComparison(self._clock, diagnose=self._diagnose)
            experiment = self.folder.read_experiment()
            self._attempt = _LiveAttempt(number, experiment, tail, comparison)
        return self._attempt

    def _read_rows(
        self,
        live: _LiveAttempt,
        attempts: Sequence[Attempt],
        reports: Sequence[Mapping[str, Any]],
        *,
        has_ended: bool,
    ) -> None:
        """Read the new rows of the newest attempt, and compare its ranks."""
        live.tail.update()
        if has_ended and reports and not live.tail.ranks:
            live.tail.read_compacted(attempts, reports[-1]["iteration"])
        live.comparison.update(live.tail.training_rows())

    def _make_rank_views(self, live: _LiveAttempt, rows: pd.DataFrame) -> tuple[RankView, ...]:
        rss: dict[int, float] = {}
        if "rss_bytes" in rows:
            rss = dict(rows.groupby("rank")["rss_bytes"].last().dropna())

        views = []
        for rank, tail in live.tail.ranks.items():
            age_s = None if tail.written is None else max(0.0, self._clock() - tail.written)
            views.append(
                RankView(
                    rank,
                    node=str(tail.newest["node"]),
                    iteration=tail.trained,
                    row_age_s=age_s,
                    timing=live.comparison.statuses.get(rank),
                    rss_bytes=float(rss[rank]) if rank in rss else None,
                    peaks=tail.peaks,
                )
            )
        return tuple(views)

    def _find_progress(
        self,
        status: str,
        experiment: Mapping[str, Any],
        attempt: Attempt | None,
        tails: Mapping[int, RankTail],
    ) -> RunProgress:
        reached = RunProgress()
        if attempt and attempt.checkpoint:
            start = attempt.position
            reached = RunProgress(epoch=start.epoch, step=start.step, iteration=start.iteration)
        if tails:
            tail = next(iter(tails.values()))
            reached = RunProgress(
                phase=tail.newest["phase"] if status == "running" else None,
                epoch=tail.newest["epoch"],
                step=tail.newest["step"],
                iteration=tail.trained or reached.iteration,
            )

        progress = estimate_progress(experiment, attempt, reached, self._clock())
        if status == "finished":
            progress = replace(progress, share=1.0)
        if status != "running":
            progress = replace(progress, eta_s=None)
        return progress

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

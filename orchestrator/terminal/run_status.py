"""The current state of a run, read from its files as they grow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter, time
from typing import Any

import pandas as pd
import pyarrow as pa

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.hang_reports import find_hang
from orchestrator.disk.metadata import COMPLETE, RunMetadata
from orchestrator.disk.reports import drop_superseded
from orchestrator.disk.run_folder import RunFolder
from orchestrator.doctor import Finding, diagnose
from orchestrator.doctor.rank_status import RankStatus, compare_ranks
from orchestrator.storage import FileState
from orchestrator.storage.omissions import log_omission
from orchestrator.tables.growing_files import AttemptTail, LineTail, RankTail
from orchestrator.tables.query import Rows
from orchestrator.terminal.estimates import compute_speed, estimate_progress
from orchestrator.terminal.run_view import RankView, RunProgress, RunView
from orchestrator.units import format_count, format_duration

MAX_DIAGNOSED = 128
"""Maximum number of ranks for findings, which compare all ranks."""
_COMPARE_INTERVAL_S = 10.0
"""Minimum seconds between comparisons of ranks."""
_COMPARE_SHARE = 0.05
"""Largest share of the time that comparisons may take."""


class LiveRun:
    """Incremental reader of a run's files, for any process that can access the run's storage.

    `clock` returns Unix time. If `diagnose` is false, there are no findings.
    """

    def __init__(
        self, folder: RunFolder, clock: Callable[[], float] = time, *, diagnose: bool = True
    ) -> None:
        self.folder = folder
        self._clock = clock
        self._diagnose = diagnose
        self._metadata: RunMetadata | None = None
        self._metadata_state: FileState | None = None
        self._line_tail = LineTail(folder.storage, "metrics.jsonl")
        self._lines: list[dict[str, Any]] = []
        self._experiment: dict[str, Any] = {}
        self._has_warned = False
        self._attempt: int | None = None
        self._tail: AttemptTail | None = None
        self._rank_statuses: dict[int, RankStatus] = {}
        self._findings: tuple[Finding, ...] = ()
        self._next_comparison = float("-inf")

    def metadata(self) -> RunMetadata:
        """Return the content of `run.json`, which is read again if it changed. Reads new reports
        too."""
        state = self.folder.storage.state("run.json")
        if self._metadata is None or state != self._metadata_state:
            self._metadata = self.folder.read_metadata()
            self._metadata_state = state
        self._lines += self._line_tail.read()

        run = self._metadata
        missing = (run.reports or 0) - len(self._lines)
        if run.status in COMPLETE and missing > 0 and not self._has_warned:
            log_omission(
                self.folder.storage / "metrics.jsonl",
                f"it lacks {missing} of its {format_count(run.reports or 0, 'report')}",
            )
            self._has_warned = True
        return run

    def reports(self) -> list[Mapping[str, Any]]:
        """Return the valid reports that `metadata` or `read_view` has read so far."""
        return drop_superseded(self._lines, self.folder.read_attempts())

    def read_view(self) -> RunView:
        metadata = self.metadata()
        status = self.folder.find_status(metadata)
        attempts = self.folder.read_attempts()
        attempt = attempts[-1] if attempts else None
        reports = drop_superseded(self._lines, attempts)

        tails, table = self._read_rows(attempts, status in COMPLETE, reports)
        self._compare(table)
        rows = table.to_pandas()
        ranks = self._make_rank_views(tails, rows)
        ages = [rank.row_age_s for rank in ranks if rank.row_age_s is not None]
        row_age_s = min(ages, default=None)
        return RunView(
            name=self.folder.name,
            path=str(self.folder),
            status=status,
            started=metadata.started,
            ended=metadata.ended,
            error=metadata.error,
            stopped=tuple(metadata.stopped),
            progress=self._find_progress(status, attempt, tails),
            speed=compute_speed(rows),
            reports=len(reports),
            report=reports[-1] if reports else {},
            attempts=len(attempts),
            resumed_from=attempt.checkpoint if attempt else None,
            row_age_s=row_age_s,
            ranks=ranks,
            findings=self._findings,
            notice=self._find_notice(status, row_age_s, metadata),
        )

    def _read_rows(
        self, attempts: Sequence[Attempt], has_ended: bool, reports: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[int, RankTail], pa.Table]:
        """Read new rows; return the ranks of the newest attempt and their last training rows."""
        if not attempts:
            return {}, pa.table({})
        number = attempts[-1].number
        if self._tail is None or number != self._attempt:
            self._attempt = number
            self._tail = AttemptTail(self.folder.storage, f"stats/attempt={number}")
            self._rank_statuses = {}
            self._findings = ()
            self._next_comparison = float("-inf")
        self._tail.update()
        if has_ended and reports and not self._tail.ranks:
            self._tail.read_compacted(attempts, reports[-1]["iteration"])
        return self._tail.ranks, self._tail.training_rows()

    def _make_rank_views(
        self, tails: Mapping[int, RankTail], rows: pd.DataFrame
    ) -> tuple[RankView, ...]:
        rss: dict[int, float] = {}
        if "rss_bytes" in rows:
            rss = dict(rows.groupby("rank")["rss_bytes"].last().dropna())

        views = []
        for rank, tail in tails.items():
            age_s = None if tail.written is None else max(0.0, self._clock() - tail.written)
            views.append(
                RankView(
                    rank,
                    node=str(tail.newest["node"]),
                    iteration=tail.trained,
                    row_age_s=age_s,
                    timing=self._rank_statuses.get(rank),
                    rss_bytes=float(rss[rank]) if rank in rss else None,
                    peaks=tail.peaks,
                )
            )
        return tuple(views)

    def _find_progress(
        self, status: str, attempt: Attempt | None, tails: Mapping[int, RankTail]
    ) -> RunProgress:
        self._experiment = self._experiment or self.folder.read_experiment()
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

        progress = estimate_progress(self._experiment, attempt, reached, self._clock())
        if status == "finished":
            progress = replace(progress, share=1.0)
        if status != "running":
            progress = replace(progress, eta_s=None)
        return progress

    def _compare(self, table: pa.Table) -> None:
        if not len(table) or self._clock() < self._next_comparison:
            return

        start = perf_counter()
        rows = table.to_pandas()
        self._rank_statuses = compare_ranks(rows)
        self._findings = ()
        if self._diagnose and rows["rank"].nunique() <= MAX_DIAGNOSED:
            # The table and not the frame, because pandas has no empty cells.
            self._findings = diagnose(Rows.wrap(table)).findings

        took_s = perf_counter() - start
        pause_s = max(_COMPARE_INTERVAL_S, took_s / _COMPARE_SHARE)
        self._next_comparison = self._clock() + pause_s

    def _find_notice(
        self, status: str, row_age_s: float | None, metadata: RunMetadata
    ) -> str | None:
        if status == "lost":
            driver = f"its driver (process {metadata.pid} on {metadata.host})"
            last = "it wrote no row"
            if row_age_s is not None:
                last = f"its last row is {format_duration(row_age_s)} old"
            return f"the run is dead: {driver} is gone; {last}"

        hang = find_hang(self.folder) if status == "running" else None
        return str(hang) if hang else None

"""A run as its files tell it at this moment: how far, how fast, which rank is slow, and whether anything still
moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, time
from typing import Any

import pandas as pd

from orchestrator.records.hang import find_hang
from orchestrator.records.metadata import Attempt, RunMetadata, seconds_at
from orchestrator.records.reports import counted_reports
from orchestrator.records.run_driver import status_of
from orchestrator.records.run_folder import ENDED, RunFolder
from orchestrator.stats.aggregate.quantities import duration, seconds
from orchestrator.stats.insight import Finding, diagnose
from orchestrator.stats.insight.rank_status import RankStatus, Speed, rank_statuses, speed
from orchestrator.stats.read.growing_files import AttemptTail, LineTail, RankTail
from orchestrator.storage import FileState, Storage
from orchestrator.storage.stored_data import left_out
from orchestrator.terminal.eta import RunProgress, estimated_progress

QUIET_S, QUIET_ITERATIONS = 60.0, 20
"""A run that has written no row for so long, and for so many of its iterations, is said to be quiet; on an object store
only when it has not sent one for an upload's interval more."""
_COMPARE_EVERY_S = 10.0
"""How often ranks are compared and the doctor is asked, at most: what they say changes slowly, and takes longer than
all else."""
_COMPARING_SHARE = 0.05
"""The part of the time that this may take."""
MOST_DIAGNOSED = 128
"""With more ranks the doctor is not asked, who looks at each of them."""


@dataclass(frozen=True)
class RankView:
    """One rank. What was not recorded is None."""

    rank: int
    node: str
    iteration: int
    """Training iterations completed."""
    row_age_s: float | None = None
    """Since its newest row was written."""
    standing: RankStatus | None = None
    """How it does beside the others, over the last iterations."""
    rss_bytes: float | None = None
    peaks: Mapping[str, float] = field(default_factory=dict)
    """The largest value of each column in bytes: in this attempt, or of a run that was over before, at its end."""


@dataclass(frozen=True)
class RunView:
    """A run at one moment, as plain data. What is not known is None."""

    name: str
    path: str
    status: str
    started: str | None
    ended: str | None
    error: str | None
    stopped: Sequence[str]
    """Why it ended before its time."""
    progress: RunProgress
    speed: Speed
    reports: int
    report: Mapping[str, Any]
    """The last one that counts."""
    attempts: int
    began_at: str | None
    """The checkpoint at which the present attempt began."""
    row_age_s: float | None
    """Since the newest row of any rank was written."""
    ranks: Sequence[RankView]
    findings: Sequence[Finding]
    """What the doctor says of the last iterations."""
    notice: str | None = None
    """Said in plain words where nothing moves."""


class LiveRun:
    """Looks at a run's files again and again, and each time reads what is new in them. Needs neither Ray nor a driver
    that lives.

    Runs in any process that sees the run's storage. `clock` gives seconds since 1970; `diagnosed` says whether the
    doctor is asked.
    """

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time, *, diagnosed: bool = True) -> None:
        self.folder, self._clock, self._diagnosed = folder, clock, diagnosed
        self._metadata: RunMetadata | None = None
        self.metadata_state: FileState | None = None
        """How `run.json` stood when it was read."""
        self._line_tail = LineTail(folder.storage, "metrics.jsonl")
        self._lines: list[dict[str, Any]] = []
        self._experiment: dict[str, Any] = {}
        self._is_checked = False
        """Whether it was said that reports of a run which is over are missing."""
        self._attempt: int | None = None
        self._rows: AttemptTail | None = None
        self._rank_statuses: dict[int, RankStatus] = {}
        self._findings: tuple[Finding, ...] = ()
        self._compare_at = float("-inf")

    def metadata(self) -> RunMetadata:
        """What `run.json` says, read again where it has changed; takes new reports on the way."""
        state = self.folder.storage.state("run.json")
        if self._metadata is None or state != self.metadata_state:
            self._metadata, self.metadata_state = self.folder.metadata(), state
        self._lines += self._line_tail.look()
        run = self._metadata
        if run.status in ENDED and not self._is_checked and len(self._lines) < (run.reports or 0):
            lost = f"{(run.reports or 0) - len(self._lines)} of its {run.reports} reports are missing"
            left_out(self.folder.storage / "metrics.jsonl", lost)
            self._is_checked = True
        return run

    def reports(self) -> list[Mapping[str, Any]]:
        """The reports that count, of those that `metadata` or `look` has taken."""
        return counted_reports(self._lines, self.folder.attempts())

    def look(self) -> RunView:
        """The run as it stands."""
        metadata, attempts = self.metadata(), self.folder.attempts()
        status, present = status_of(self.folder, metadata), attempts[-1] if attempts else None
        reports = counted_reports(self._lines, attempts)
        tails, rows = self._look_at_rows(attempts, status in ENDED, reports)
        self._compare(rows)
        ranks, pace = self._ranks(tails, rows), speed(rows)
        view = RunView(
            name=self.folder.name,
            path=str(self.folder),
            status=status,
            started=metadata.started,
            ended=metadata.ended,
            error=metadata.error,
            stopped=tuple(metadata.stopped),
            progress=self._progress(status, present, tails, reports, pace.step_s),
            speed=pace,
            reports=len(reports),
            report=reports[-1] if reports else {},
            attempts=len(attempts),
            began_at=present.checkpoint if present else None,
            row_age_s=min((rank.row_age_s for rank in ranks if rank.row_age_s is not None), default=None),
            ranks=ranks,
            findings=self._findings,
        )
        stands = find_hang(self.folder) if status == "running" else None
        quiet = _notice(view, metadata, present, self._clock(), self._upload_interval_s())
        return replace(view, notice=str(stands) if stands else quiet)

    def _look_at_rows(
        self, attempts: Sequence[Attempt], over: bool, reports: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[int, RankTail], pd.DataFrame]:
        """The newest attempt's ranks, which may be others than before, and their last training rows."""
        if not attempts:
            return {}, pd.DataFrame()
        number = attempts[-1].number
        if self._rows is None or number != self._attempt:
            self._attempt, self._rows = number, AttemptTail(self.folder.storage, f"stats/attempt={number}")
            self._rank_statuses, self._findings, self._compare_at = {}, (), float("-inf")
        self._rows.look()
        if over and reports and not self._rows.ranks:
            self._rows.take_joined(attempts, reports[-1]["iteration"])
        return self._rows.ranks, self._rows.training_rows()

    def _ranks(self, tails: Mapping[int, RankTail], rows: pd.DataFrame) -> tuple[RankView, ...]:
        held = dict(rows.groupby("rank")["rss_bytes"].last().dropna()) if "rss_bytes" in rows else {}
        return tuple(
            RankView(
                rank,
                str(tail.newest["node"]),
                tail.trained,
                None if tail.written is None else max(0.0, self._clock() - tail.written),
                self._rank_statuses.get(rank),
                float(held[rank]) if rank in held else None,
                dict(tail.peaks),
            )
            for rank, tail in tails.items()
        )

    def _progress(
        self,
        status: str,
        present: Attempt | None,
        tails: Mapping[int, RankTail],
        reports: Sequence[Mapping[str, Any]],
        step_s: float | None,
    ) -> RunProgress:
        self._experiment = self._experiment or self.folder.experiment()
        begun = present.position if present and present.checkpoint else None
        reached = RunProgress(None, begun.epoch, begun.step, begun.iteration) if begun else RunProgress()
        if tails:
            first = next(iter(tails.values()))
            phase = first.newest["phase"] if status == "running" else None
            reached = RunProgress(
                phase, first.newest["epoch"], first.newest["step"], first.trained or reached.iteration
            )
        so_far = estimated_progress(self._experiment, present, reached, reports, step_s)
        share = 1.0 if status == "finished" else so_far.share
        return replace(so_far, share=share, eta_s=so_far.eta_s if status == "running" else None)

    def _upload_interval_s(self) -> float:
        """How long its rows are on their way."""
        return 0.0 if self.folder.storage.local else float(self._experiment.get("upload_interval_s") or 0)

    def _compare(self, rows: pd.DataFrame) -> None:
        """Takes what the last iterations say of the ranks and of the run."""
        if not len(rows) or self._clock() < self._compare_at:
            return
        began = perf_counter()
        self._rank_statuses = rank_statuses(rows)
        self._findings = diagnose(rows).findings if self._diagnosed and rows["rank"].nunique() <= MOST_DIAGNOSED else ()
        self._compare_at = self._clock() + max(_COMPARE_EVERY_S, (perf_counter() - began) / _COMPARING_SHARE)


def look_every_s(storage: Storage) -> float:
    """How often it is worth looking: ranks write to a disk every second, and send to an object store now and then."""
    return 1.0 if storage.local else 10.0


def _notice(
    view: RunView, metadata: RunMetadata, present: Attempt | None, now: float, upload_interval_s: float
) -> str | None:
    """What is to be said of a run that is dead, and of one that says it runs and writes nothing: whether a rank stands
    still is judged by the ranks, see `records/hang.py`."""
    driver = f"its driver (process {metadata.pid} on {metadata.host})"
    quiet_s = view.row_age_s
    last = "it has written no row" if quiet_s is None else f"its newest row is {duration(quiet_s)} old"
    if view.status == "lost":
        return f"the run is dead: {driver} is gone; {last}"
    if view.status != "running":
        return None
    since = quiet_s if quiet_s is not None else now - seconds_at((present and present.started) or metadata.started)
    if since < max(QUIET_S, QUIET_ITERATIONS * (view.speed.step_s or 0)) + upload_interval_s:
        return None
    what = f"no row for {duration(since)}" if quiet_s is not None else f"no row yet, {duration(since)} after it began"
    usual = f", where an iteration took {seconds(view.speed.step_s)}" if view.speed.step_s else ""
    return f"{what}{usual}: a checkpoint, or something else that takes long; a hung rank is reported as one"

"""The current state of a run, read from its files: progress, speed, ranks, findings, and hangs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, time
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from hooks.interval import count_iterations
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.hang import find_hang
from orchestrator.disk.metadata import COMPLETE, RunMetadata, seconds_at
from orchestrator.disk.reports import drop_superseded
from orchestrator.disk.run_folder import RunFolder
from orchestrator.doctor import Finding, diagnose
from orchestrator.doctor.stragglers import RankStatus, compare_ranks
from orchestrator.storage import FileState, Storage
from orchestrator.storage.stored_data import log_omission
from orchestrator.tables.growing_files import AttemptTail, LineTail, RankTail
from orchestrator.tables.query import Rows
from orchestrator.units import format_duration

MAX_DIAGNOSED = 128
"""Maximum number of ranks for findings, which compare all ranks."""
_COMPARE_INTERVAL_S, _COMPARE_SHARE = 10.0, 0.05
"""Minimum seconds between comparisons of ranks, and the largest fraction of time they may take."""
SPEED_ITERATIONS = 50
"""Number of last iterations from which loss and speed are computed."""


@dataclass(frozen=True)
class RunProgress:
    """Progress of training; None for unknown values."""

    phase: str | None = None
    epoch: int | None = None
    """Current epoch, numbered from 0."""
    step: int = 0
    iteration: int = 0
    """Completed training iterations."""
    epochs: int | None = None
    """Length of the run in epochs, if it was set in epochs."""
    steps: int | None = None
    """Length of the run in steps, if it was set in steps."""
    share: float | None = None
    """Completed fraction of training, from 0 to 1."""
    attempt_share: float | None = None
    """Fraction of training that the current attempt has completed."""
    eta_s: float | None = None
    """Seconds to the end of training at the mean speed."""


@dataclass(frozen=True)
class Speed:
    """Loss and speed over the last iterations; None if not recorded."""

    loss: float | None = None
    """Mean across all ranks."""
    step_s: float | None = None
    """Median time of an iteration."""
    samples_per_s: float | None = None
    """Samples of all ranks together, by the slowest rank's time."""


@dataclass(frozen=True)
class RankView:
    """State of a rank at one moment; None for values that it did not record."""

    rank: int
    node: str
    iteration: int
    """Completed training iterations."""
    row_age_s: float | None = None
    """Seconds since its last row."""
    timing: RankStatus | None = None
    """Work and waiting over the last iterations, compared with the other ranks."""
    rss_bytes: float | None = None
    peaks: Mapping[str, float | None] = field(default_factory=dict)
    """Largest value of each `_bytes` column over the last iterations."""


@dataclass(frozen=True)
class RunView:
    """State of a run at one moment, as plain data; None for unknown values."""

    name: str
    path: str
    status: str
    started: str | None
    ended: str | None
    error: str | None
    stopped: Sequence[str]
    """Reasons why it ended early."""
    progress: RunProgress
    speed: Speed
    reports: int
    report: Mapping[str, Any]
    """The last report."""
    attempts: int
    resumed_from: str | None
    """Checkpoint from which the current attempt resumed."""
    row_age_s: float | None
    """Seconds since the last row of any rank."""
    ranks: Sequence[RankView]
    findings: Sequence[Finding]
    """Findings in the last iterations."""
    notice: str | None = None
    """Message if the run is dead or hangs."""


class LiveRun:
    """Incremental reader of a run's files, for any process that can access the run's storage.

    `clock` returns Unix time. If `diagnose` is false, there are no findings.
    """

    def __init__(
        self, folder: RunFolder, clock: Callable[[], float] = time, *, diagnose: bool = True
    ) -> None:
        self.folder, self._clock, self._diagnose = folder, clock, diagnose
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
            self._metadata, self._metadata_state = self.folder.read_metadata(), state
        self._lines += self._line_tail.read()
        run = self._metadata
        missing = (run.reports or 0) - len(self._lines)
        if run.status in COMPLETE and missing > 0 and not self._has_warned:
            log_omission(
                self.folder.storage / "metrics.jsonl",
                f"{missing} of its {run.reports} reports are missing",
            )
            self._has_warned = True
        return run

    def reports(self) -> list[Mapping[str, Any]]:
        """Return the valid reports that `metadata` or `read_view` has read so far."""
        return drop_superseded(self._lines, self.folder.read_attempts())

    def read_view(self) -> RunView:
        metadata, attempts = self.metadata(), self.folder.read_attempts()
        status, attempt = self.folder.find_status(metadata), attempts[-1] if attempts else None
        reports = drop_superseded(self._lines, attempts)
        tails, table = self._read_rows(attempts, status in COMPLETE, reports)
        self._compare(table)
        rows = table.to_pandas()
        ranks = self._make_rank_views(tails, rows)
        row_age_s = min(
            (rank.row_age_s for rank in ranks if rank.row_age_s is not None), default=None
        )
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
            self._attempt, self._tail = (
                number,
                AttemptTail(self.folder.storage, f"stats/attempt={number}"),
            )
            self._rank_statuses, self._findings, self._next_comparison = {}, (), float("-inf")
        self._tail.update()
        if has_ended and reports and not self._tail.ranks:
            self._tail.read_compacted(attempts, reports[-1]["iteration"])
        return self._tail.ranks, self._tail.training_rows()

    def _make_rank_views(
        self, tails: Mapping[int, RankTail], rows: pd.DataFrame
    ) -> tuple[RankView, ...]:
        rss = dict(rows.groupby("rank")["rss_bytes"].last().dropna()) if "rss_bytes" in rows else {}
        return tuple(
            RankView(
                rank,
                str(tail.newest["node"]),
                tail.trained,
                None if tail.written is None else max(0.0, self._clock() - tail.written),
                self._rank_statuses.get(rank),
                float(rss[rank]) if rank in rss else None,
                tail.peaks,
            )
            for rank, tail in tails.items()
        )

    def _find_progress(
        self, status: str, attempt: Attempt | None, tails: Mapping[int, RankTail]
    ) -> RunProgress:
        self._experiment = self._experiment or self.folder.read_experiment()
        start = attempt.position if attempt and attempt.checkpoint else None
        reached = (
            RunProgress(None, start.epoch, start.step, start.iteration) if start else RunProgress()
        )
        if tails:
            tail = next(iter(tails.values()))
            phase = tail.newest["phase"] if status == "running" else None
            reached = RunProgress(
                phase, tail.newest["epoch"], tail.newest["step"], tail.trained or reached.iteration
            )
        progress = estimate_progress(self._experiment, attempt, reached, self._clock())
        share = 1.0 if status == "finished" else progress.share
        return replace(progress, share=share, eta_s=progress.eta_s if status == "running" else None)

    def _compare(self, table: pa.Table) -> None:
        if not len(table) or self._clock() < self._next_comparison:
            return
        start = perf_counter()
        rows = table.to_pandas()
        self._rank_statuses = compare_ranks(rows)
        is_diagnose = self._diagnose and rows["rank"].nunique() <= MAX_DIAGNOSED
        self._findings = (
            diagnose(Rows.wrap(table)).findings if is_diagnose else ()
        )  # pandas has no empty cells
        self._next_comparison = self._clock() + max(
            _COMPARE_INTERVAL_S, (perf_counter() - start) / _COMPARE_SHARE
        )

    def _find_notice(
        self, status: str, row_age_s: float | None, metadata: RunMetadata
    ) -> str | None:
        if status == "lost":
            last = (
                "it wrote no row"
                if row_age_s is None
                else f"its last row is {format_duration(row_age_s)} old"
            )
            return f"the run is dead: its driver (process {metadata.pid} on {metadata.host}) is gone; {last}"
        hang = find_hang(self.folder) if status == "running" else None
        return str(hang) if hang else None


def get_read_interval_s(storage: Storage) -> float:
    """Return the seconds between two reads: new rows arrive every second on a disk, rarely on an
    object store."""
    return 1.0 if storage.local else 10.0


def estimate_progress(
    experiment: Mapping[str, Any], attempt: Attempt | None, reached: RunProgress, now: float
) -> RunProgress:
    """Add length, share and ETA to a run's progress, from the mean speed of the current attempt.

    The speed includes validation and saving. `now` is Unix time.
    """
    remaining = _count_remaining_iterations(experiment, attempt, reached)
    total = None if remaining is None else reached.iteration + remaining
    share = reached.iteration / total if total else None
    done = reached.iteration - attempt.position.iteration if attempt else 0
    eta_s = None
    if remaining is not None and attempt and attempt.started and done > 0:
        # The clock may have been set back.
        eta_s = remaining * max(0.0, now - seconds_at(attempt.started)) / done
    epochs, steps = experiment.get("epochs"), experiment.get("steps")
    attempt_share = done / total if total else None
    return replace(
        reached, epochs=epochs, steps=steps, share=share, attempt_share=attempt_share, eta_s=eta_s
    )


def _count_remaining_iterations(
    experiment: Mapping[str, Any], attempt: Attempt | None, reached: RunProgress
) -> int | None:
    epochs, steps, batch_size = (experiment.get(name) for name in ("epochs", "steps", "batch_size"))
    length = attempt.epoch_iterations or 0 if attempt else 0
    completed = reached.iteration
    if attempt is not None and batch_size:
        start = attempt.position
        # The epoch may have started with a different number of ranks, so its completed part is
        # counted in samples.
        in_epoch = (
            start.offset // (batch_size * attempt.world_size)
            if start.offset
            else start.phase_iteration
        )
        completed = start.epoch * length + in_epoch + reached.iteration - start.iteration
    if steps is not None:
        accumulate = experiment.get("accumulate")
        accumulate = accumulate if isinstance(accumulate, int) else 1
        return count_iterations(max(0, steps - reached.step), accumulate, length, completed)
    return max(0, int(epochs * length - completed)) if epochs and length else None


@np.errstate(invalid="ignore", divide="ignore")
def compute_speed(rows: pd.DataFrame) -> Speed:
    """Return the current speed from training rows, any number for each rank."""
    if not len(rows):
        return Speed()
    newest = rows.groupby("rank").tail(SPEED_ITERATIONS)
    values: dict[str, float] = {"loss": newest["loss"].mean()} if "loss" in newest else {}
    if "step_s" in newest:
        values["step_s"] = newest["step_s"].median()
        if "batch_size" in newest:
            values["samples_per_s"] = (
                newest["batch_size"].sum() / newest.groupby("rank")["step_s"].sum().max()
            )
    return Speed(**{name: float(value) for name, value in values.items() if np.isfinite(value)})

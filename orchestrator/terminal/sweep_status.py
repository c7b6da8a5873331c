"""The current state of a sweep, read from its trials' files: running, best and failed trials."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import time
from typing import Any

from orchestrator.disk.metadata import COMPLETE, RunMetadata, SweepMetadata, seconds_at
from orchestrator.disk.run_folder import RunFolder
from orchestrator.tables.best_report import find_best_report
from orchestrator.tables.configurations import Configuration, Repeat, rank_configurations
from orchestrator.tables.constraints import Constraints, make_measured_cells
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.terminal.run_status import LiveRun
from orchestrator.terminal.run_view import RunView
from orchestrator.units import is_number

RESUMABLE = ("interrupted", "lost")
"""Statuses of trials that a resume of the sweep continues."""


@dataclass(frozen=True)
class TrialView:
    """State of a trial at one moment."""

    name: str
    status: str
    values: Mapping[str, Any]
    """Swept values by dotted path."""
    best: float | None
    """The sweep's metric in the trial's best report."""
    last: float | None
    """The sweep's metric in the trial's last report."""
    started: str
    ended: str | None
    stopped: Sequence[str]
    error: str | None
    run: RunView | None = None
    """State of a running trial."""
    configuration: int | None = None
    """Number of its configuration."""
    attempt_share: float = 1.0
    """Share of an ended trial's training that its last attempt did."""
    infeasible: str | None = None
    """Which of the sweep's constraints an ended trial breaks."""

    @classmethod
    def from_record(cls, record: TrialRecord, metric: str, infeasible: str | None) -> "TrialView":
        """Return the view of an ended trial, from its summary in the sweep's index."""
        return cls(
            name=record.name,
            status=record.status,
            values=record.values,
            best=record.best.get(metric),
            last=_keep_number(record.last.get(metric)),
            started=record.started,
            ended=record.ended,
            stopped=record.stopped,
            error=record.error,
            configuration=record.configuration,
            infeasible=infeasible,
        )

    @classmethod
    def from_run(
        cls, name: str, run: LiveRun, metadata: RunMetadata, metric: str, mode: str
    ) -> "TrialView":
        """Return the view of a trial, from its `run.json` and the other files of its run."""
        reports = run.reports()
        is_running = metadata.status == "running"
        complete = [report for report in reports if metadata.modes.keys() <= report.keys()]
        best = find_best_report(complete, metric, mode)
        values = [report[metric] for report in reports if metric in report]
        return cls(
            name=name,
            status=run.folder.find_status(metadata),
            values=metadata.values,
            best=best[metric] if best else None,
            last=_keep_number(values[-1]) if values else None,
            started=metadata.started,
            ended=metadata.ended,
            stopped=metadata.stopped,
            error=metadata.error,
            run=run.read_view() if is_running else None,
            configuration=metadata.configuration,
            attempt_share=1.0 if is_running else _compute_attempt_share(run.folder, reports),
        )


@dataclass(frozen=True)
class SweepView:
    """State of a sweep at one moment, as plain data."""

    name: str
    path: str
    status: str
    error: str | None
    metric: str
    mode: str
    total: int
    """Number of trials of the complete sweep."""
    counts: Mapping[str, int]
    """Number of trials by status."""
    best: str | None
    """Trial with the best report; with repeats, the best trial of the best configuration."""
    share: float
    """Completed share of all trials, from 0 to 1."""
    eta_s: float | None
    """Seconds to the end of a running sweep at the current speed."""
    trials: Sequence[TrialView]
    """Started trials: first running ones, then ended ones (best first), then failed ones."""
    notice: str | None = None
    configuration: Configuration | None = None
    """Best configuration of a sweep with repeats."""

    @property
    def ended(self) -> int:
        """Number of trials that will not continue."""
        continuing = ("running", *RESUMABLE)
        return sum(count for status, count in self.counts.items() if status not in continuing)

    @property
    def failed(self) -> int:
        """Number of trials that failed or were lost."""
        return self.counts.get("failed", 0) + self.counts.get("lost", 0)


class LiveSweep:
    """Incremental reader of a sweep's folder, which reads a finished trial once.

    Works in any process that can access the sweep's storage. `clock` returns Unix time.
    """

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time) -> None:
        self.folder = folder
        self._clock = clock
        self._sweep_run = LiveRun(folder, clock)
        self._runs: dict[str, LiveRun] = {}
        """Trials that may still change."""
        self._settled: dict[str, TrialView] = {}
        self._attempts = 0

    def read_view(self) -> SweepView:
        metadata = self._sweep_run.metadata()
        sweep = metadata.sweep
        assert sweep is not None
        trials = self._refresh_trials(metadata, sweep)
        status = self.folder.find_status(metadata)
        view = _summarize(self.folder, metadata, sweep, status, trials)
        if status != "running":
            return view
        last_start = _list_starts(metadata)[-1]
        return replace(view, eta_s=_estimate_eta_s(view, last_start, self._clock()))

    def _refresh_trials(self, metadata: RunMetadata, sweep: SweepMetadata) -> list[TrialView]:
        """Read what has changed since the last call; return the started trials."""
        starts = _list_starts(metadata)
        if len(starts) != self._attempts:
            # A resumed sweep may retry ended trials.
            self._attempts = len(starts)
            self._settled = self._load_settled(sweep, starts[-1])
        return [self._make_trial_view(name, sweep) for name in self._list_started_trials()]

    def _load_settled(self, sweep: SweepMetadata, start: str) -> dict[str, TrialView]:
        """Return the trials that ended before the last `start` of the sweep, from its index.

        A trial that was resumed since then is read from its folder, which knows how far its
        attempts came.
        """
        metric = sweep.objectives[0][0]
        constraints = Constraints(sweep.constraints)
        settled = {}
        records = TrialIndex(self.folder, sweep.objectives).read_stored()
        for name, record in records.items():
            was_resumed = record.started < start <= (record.ended or "")
            if record.status in COMPLETE and not was_resumed:
                cells = make_measured_cells(record, record.get_leader(records))
                settled[name] = TrialView.from_record(
                    record, metric, constraints.describe_broken(cells)
                )
        return settled

    def _list_started_trials(self) -> list[str]:
        names = self.folder.storage.names("trials")
        for name in names:
            if name not in self._settled and name not in self._runs:
                folder = RunFolder(self.folder.storage / "trials", name)
                if folder.exists():
                    self._runs[name] = LiveRun(folder, self._clock, diagnose=False)
        return [name for name in names if name in self._settled or name in self._runs]

    def _make_trial_view(self, name: str, sweep: SweepMetadata) -> TrialView:
        if name in self._settled:
            return self._settled[name]
        run = self._runs[name]
        metadata = run.metadata()
        metric, mode = sweep.objectives[0]
        view = TrialView.from_run(name, run, metadata, metric, mode)
        if view.status in COMPLETE and sweep.constraints:
            view = replace(view, infeasible=self._find_broken_constraints(name, sweep))

        # Until a resume, these do not change. Tune may retry a trial that failed for another
        # reason.
        is_final_failure = view.status == "failed" and metadata.is_user_error
        if view.status in (*COMPLETE, "interrupted") or is_final_failure:
            self._settled[name] = view
            del self._runs[name]
        return view

    def _find_broken_constraints(self, name: str, sweep: SweepMetadata) -> str | None:
        trials = self.folder.storage / "trials"
        record = TrialRecord.read(RunFolder(trials, name), sweep.objectives)
        leader = None
        if record.leader:
            leader = TrialRecord.read(RunFolder(trials, record.leader), sweep.objectives)
        return Constraints(sweep.constraints).describe_broken(make_measured_cells(record, leader))


def _list_starts(metadata: RunMetadata) -> list[str]:
    """Return when the sweep began and was resumed."""
    return [metadata.started, *metadata.resumed]


def _summarize(
    folder: RunFolder,
    metadata: RunMetadata,
    sweep: SweepMetadata,
    status: str,
    trials: Sequence[TrialView],
) -> SweepView:
    """Return the state of a sweep with these trials; reads no file."""
    metric, mode = sweep.objectives[0]
    ordered = sorted(trials, key=lambda trial: _make_sort_key(trial, mode))
    leader = _find_leader(ordered, mode, sweep.aggregate)
    best = _find_best(ordered, leader, mode)
    total = max(sweep.trials, len(ordered))
    return SweepView(
        name=folder.name,
        path=str(folder),
        status=status,
        error=metadata.error,
        metric=metric,
        mode=mode,
        total=total,
        counts=dict(Counter(trial.status for trial in ordered)),
        best=best.name if best else None,
        share=sum(_get_share(trial) for trial in ordered) / total,
        eta_s=None,
        trials=tuple(ordered),
        configuration=leader if best else None,
        notice=_describe_lost_driver(metadata) if status == "lost" else None,
    )


def _describe_lost_driver(metadata: RunMetadata) -> str:
    driver = f"its driver (process {metadata.pid} on {metadata.host})"
    return f"the sweep is dead: {driver} is gone"


def _estimate_eta_s(view: SweepView, start: str, now: float) -> float | None:
    """Estimate the seconds left at `now` from the speed since `start`. A running trial counts by
    its share since then."""
    remaining = view.total - sum(_get_share(trial) for trial in view.trials)
    done = sum(
        _get_share(trial, start)
        for trial in view.trials
        if trial.ended is None or trial.ended >= start
    )
    elapsed = max(0.0, now - seconds_at(start))
    return elapsed * remaining / done if done > 0 else None


def _make_sort_key(trial: TrialView, mode: str) -> tuple[int, float, str]:
    """Return a key that puts running trials first, then ended ones from the best, then failed ones.

    A running trial keeps its place while its best value changes.
    """
    group = {"running": 0, "failed": 2, "lost": 2}.get(trial.status, 1)
    cost = 0.0 if trial.status == "running" else _compute_cost(trial, mode)
    return group, cost, trial.name


def _find_leader(trials: Sequence[TrialView], mode: str, aggregate: str) -> Configuration | None:
    """Return the best configuration of a sweep with repeats, all of which keep the constraints."""
    infeasible = {trial.configuration for trial in trials if trial.infeasible}
    repeats = []
    for trial in trials:
        if trial.configuration is not None:
            value = None if trial.configuration in infeasible else trial.best
            repeats.append(Repeat(trial.configuration, trial.name, trial.status, value))
    ranking = rank_configurations(repeats, mode, aggregate)
    return ranking[0] if ranking else None


def _find_best(
    trials: Sequence[TrialView], leader: Configuration | None, mode: str
) -> TrialView | None:
    """Return the best trial, with repeats that of the best configuration."""
    candidates = [
        trial
        for trial in trials
        if trial.best is not None and trial.status != "failed" and not trial.infeasible
    ]
    if leader is not None:
        candidates = [trial for trial in candidates if trial.name in leader.trials[:1]]
    return min(candidates, key=lambda trial: (_compute_cost(trial, mode), trial.name), default=None)


def _keep_number(value: Any) -> float | None:
    """Return a reported value; None if it is missing, NaN or no number."""
    return value if is_number(value) else None


def _get_share(trial: TrialView, since: str = "") -> float:
    """Return the completed share of a trial; 0 for one that only a resume continues.

    Of a trial that began before the time `since`, return the share of its last attempt.
    """
    if trial.status == "running" and trial.run is not None:
        progress = trial.run.progress
        return (progress.attempt_share if trial.started < since else progress.share) or 0.0
    if trial.status in RESUMABLE:
        return 0.0
    return trial.attempt_share if trial.started < since else 1.0


def _compute_attempt_share(trial: RunFolder, reports: Sequence[Mapping[str, Any]]) -> float:
    attempts = trial.read_attempts()
    if not attempts or not reports:
        return 1.0
    return 1 - attempts[-1].position.iteration / max(1, int(reports[-1]["iteration"]))


def _compute_cost(trial: TrialView, mode: str) -> float:
    """Return a cost to sort by: lower is better; infinity if there is no value."""
    if trial.best is None:
        return math.inf
    return -trial.best if mode == "max" else trial.best

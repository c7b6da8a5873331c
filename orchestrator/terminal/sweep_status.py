"""A sweep as its trials' files tell it at this moment: what runs, what is best, what failed, and what is to come."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

from orchestrator.records.metadata import seconds_at
from orchestrator.records.run_driver import status_of
from orchestrator.records.run_folder import ENDED, RunFolder
from orchestrator.stats.aggregate.best_report import best_report
from orchestrator.stats.aggregate.configurations import Configuration, Repeat, configurations
from orchestrator.stats.aggregate.quantities import is_number
from orchestrator.stats.aggregate.trial_index import TrialIndex, TrialRecord
from orchestrator.storage import FileState
from orchestrator.terminal.run_status import LiveRun, RunView

SETTLED = (*ENDED, "interrupted")
"""Trials that are as they are until the sweep is taken up again; one that failed may be started anew by Tune."""


@dataclass(frozen=True)
class TrialView:
    """One trial at one moment."""

    name: str
    status: str
    values: Mapping[str, Any]
    """Dotted path to what it has chosen."""
    best: float | None
    """The sweep's metric at its best report."""
    last: float | None
    """And at its last."""
    started: str
    ended: str | None
    stopped: Sequence[str]
    error: str | None
    run: RunView | None
    """Of a trial that is under way."""
    configuration: int | None = None
    """Which one it repeats."""


@dataclass(frozen=True)
class SweepView:
    """A sweep at one moment, as plain data."""

    name: str
    path: str
    status: str
    error: str | None
    metric: str
    mode: str
    total: int
    """Trials that it is to have."""
    counts: Mapping[str, int]
    """How many trials there are of each status."""
    best: str | None
    """The trial whose best report is best, with repeats of those of the best configuration."""
    share: float
    """How much of all trials is done, from 0 to 1."""
    eta_s: float | None
    """Seconds to its end at the present pace, of one that is under way."""
    trials: Sequence[TrialView]
    """Those begun: what runs, then the others with the best first and those that failed last."""
    notice: str | None = None
    configuration: Configuration | None = None
    """The best one, where they are repeated."""

    @property
    def failed(self) -> int:
        """How many trials failed, or died without a word."""
        return self.counts.get("failed", 0) + self.counts.get("lost", 0)


class LiveSweep:
    """Looks at a sweep's folder again and again; trials that are over are read once. Needs neither Ray nor a driver
    that lives.

    Runs in any process that sees the sweep's storage. `clock` gives seconds since 1970.
    """

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time) -> None:
        self.folder, self._clock = folder, clock
        self._own = LiveRun(folder, clock)
        self._runs: dict[str, LiveRun] = {}
        """Those that may go on; of one that is over no more is held than what is shown."""
        self._settled: dict[str, TrialView] = {}
        self._failed: dict[str, FileState | None] = {}
        """How `run.json` stands of those settled that Tune may start anew."""
        self._attempts = 0

    def look(self) -> SweepView:
        """The sweep as it stands."""
        metadata = self._own.metadata()
        starts = [metadata.started, *metadata.resumed]
        sweep = metadata.sweep
        assert sweep is not None
        metric, mode = sweep.metric, sweep.mode
        if len(starts) != self._attempts:
            # Trials that were over may be tried again in another attempt.
            self._attempts, self._failed = len(starts), {}
            known = TrialIndex(self.folder, sweep.objectives or [(metric, mode)]).standing()
            self._settled = {
                name: _of_record(record, metric) for name, record in known.items() if record.status in SETTLED
            }
        self._look_at_failed()
        trials = sorted(
            (self._trial(name, metric, mode) for name in self._begun_trials()), key=lambda trial: _sort_key(trial, mode)
        )
        leader = next(iter(configurations(_repeats(trials), mode, sweep.aggregate)), None)
        judged = [
            trial for trial in trials if trial.best is not None and (leader is None or trial.name in leader.trials[:1])
        ]
        best = min(judged, key=lambda trial: (_merit(trial, mode), trial.name), default=None)
        status, total = status_of(self.folder, metadata), max(sweep.trials, len(trials))
        done = sum(_share(trial) for trial in trials)
        return SweepView(
            name=self.folder.name,
            path=str(self.folder),
            status=status,
            error=metadata.error,
            metric=metric,
            mode=mode,
            total=total,
            counts=dict(Counter(trial.status for trial in trials)),
            best=best.name if best else None,
            share=done / total,
            eta_s=self._eta(trials, total - done, starts[-1]) if status == "running" else None,
            trials=tuple(trials),
            configuration=leader if best else None,
            notice=(
                f"the sweep is dead: its driver (process {metadata.pid} on {metadata.host}) is gone"
                if status == "lost"
                else None
            ),
        )

    def _begun_trials(self) -> list[str]:
        names = self.folder.storage.names("trials")
        around = self.folder.storage / "trials"
        for name in (name for name in names if name not in self._settled and name not in self._runs):
            folder = RunFolder(around, name)
            if folder.exists():
                self._runs[name] = LiveRun(folder, self._clock, diagnosed=False)
        return [name for name in names if name in self._settled or name in self._runs]

    def _look_at_failed(self) -> None:
        """Takes up those again that were started anew."""
        files = self.folder.storage.each(self._run_file, self._failed)
        for name, state in zip([*self._failed], files, strict=True):
            if state != self._failed[name]:
                del self._failed[name], self._settled[name]

    def _run_file(self, trial: str) -> FileState | None:
        return self.folder.storage.state(f"trials/{trial}/run.json")

    def _trial(self, name: str, metric: str, mode: str) -> TrialView:
        if name in self._settled:
            return self._settled[name]
        run = self._runs[name]
        metadata, reports = run.metadata(), run.reports()
        best = best_report(reports, metric, mode)
        view = TrialView(
            name=name,
            status=status_of(run.folder, metadata),
            values=metadata.values,
            best=best[metric] if best else None,
            last=next((report[metric] for report in reversed(reports) if is_number(report.get(metric))), None),
            started=metadata.started,
            ended=metadata.ended,
            stopped=tuple(metadata.stopped),
            error=metadata.error,
            run=run.look() if metadata.status == "running" else None,
            configuration=metadata.configuration,
        )
        if view.status not in ("running", "lost"):
            self._settled[name] = view
            del self._runs[name]
        if view.status == "failed" and not metadata.mistake:
            self._failed[name] = run.metadata_state
        return view

    def _eta(self, trials: Sequence[TrialView], left: float, began: str) -> float | None:
        """Return the seconds left at the pace of this attempt; a trial under way counts for its finished part."""
        done = sum(_share(trial) for trial in trials if trial.ended is None or trial.ended >= began)
        elapsed = self._clock() - seconds_at(began)
        return elapsed * left / done if done > 0 else None


def _of_record(record: TrialRecord, metric: str) -> TrialView:
    """A trial that is over, as the index has it."""
    last = record.last.get(metric)
    return TrialView(
        name=record.name,
        status=record.status,
        values=record.values,
        best=record.best.get(metric),
        last=last if is_number(last) else None,
        started=record.started,
        ended=record.ended,
        stopped=tuple(record.stopped),
        error=record.error,
        run=None,
        configuration=record.configuration,
    )


def _repeats(trials: Sequence[TrialView]) -> list[Repeat]:
    return [
        Repeat(one.configuration, one.name, one.status, one.best) for one in trials if one.configuration is not None
    ]


def _share(trial: TrialView) -> float:
    """How much of a trial is done; whatever ended it, nothing of it is to come."""
    if trial.status != "running" or trial.run is None:
        return 1.0
    return trial.run.progress.share or 0.0


def _merit(trial: TrialView, mode: str) -> float:
    """Less is better; without a value, worse than all."""
    if trial.best is None:
        return math.inf
    return -trial.best if mode == "max" else trial.best


def _sort_key(trial: TrialView, mode: str) -> tuple[int, float, str]:
    """What runs, by name; then the others, the best first; those that failed last."""
    if trial.status == "running":
        return 0, 0.0, trial.name
    return 2 if trial.status in ("failed", "lost") else 1, _merit(trial, mode), trial.name

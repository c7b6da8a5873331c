"""The current state of a sweep, read from its trials' files as they grow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import time
from typing import Any

from orchestrator.disk.metadata import RunMetadata, SweepMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status
from orchestrator.disk.statuses import COMPLETE
from orchestrator.errors import DamagedFile
from orchestrator.tables.best_report import find_best_report, select_comparable
from orchestrator.tables.constraints import Constraints, make_measured_cells, read_measured_cells
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.terminal.run_status import LiveRun
from orchestrator.terminal.run_view import RunView
from orchestrator.terminal.sweep_summary import estimate_eta_s, summarize_sweep
from orchestrator.terminal.sweep_view import SweepView, TrialView
from orchestrator.units import is_number


class LiveSweep:
    """Incremental reader of a sweep's folder, for any process that can access the sweep's storage.

    It reads an ended trial once, until the sweep is resumed.
    """

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time) -> None:
        """Prepare to read a sweep.

        Args:
            folder: Folder of the sweep.
            clock: Returns Unix time.
        """
        self.folder = folder
        self._clock = clock
        self._sweep_run = LiveRun(folder, clock)
        self._runs: dict[str, LiveRun] = {}
        """Trials that may still change."""
        self._settled: dict[str, TrialView] = {}
        """Trials that do not change until the sweep is resumed."""
        self._n_starts = 0
        """Number of starts of the sweep when the settled trials were loaded."""

    def read_view(self) -> SweepView:
        """Read what has changed since the last call, and return the state of the sweep."""
        metadata = self._sweep_run.read_metadata()
        sweep = metadata.sweep
        assert sweep is not None
        starts = [metadata.started, *metadata.resumed]
        trials = self._refresh_trials(sweep, starts)

        status = find_status(self.folder, metadata)
        view = summarize_sweep(self.folder, metadata, sweep, status, trials)
        if status != "running":
            return view
        return replace(view, eta_s=estimate_eta_s(view, starts[-1], self._clock()))

    def _refresh_trials(self, sweep: SweepMetadata, starts: Sequence[str]) -> list[TrialView]:
        """Return the started trials. `starts` are when the sweep began and was resumed."""
        if len(starts) != self._n_starts:
            # A resumed sweep may retry ended trials.
            self._n_starts = len(starts)
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
                infeasible = constraints.explain_infeasible(record.status, cells)
                settled[name] = _make_view_of_record(record, metric, infeasible)
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
        try:
            return self._read_trial_view(name, sweep)
        except DamagedFile as error:
            return _make_view_of_damage(name, error)

    def _read_trial_view(self, name: str, sweep: SweepMetadata) -> TrialView:
        """Return the view of a trial from its files, and settle it once it has ended."""
        run = self._runs[name]
        metadata = run.read_metadata()
        view = _make_view_of_run(name, run, metadata, sweep)
        # Tune may retry a trial that failed for a reason outside the user's code.
        is_final_failure = view.status == "failed" and metadata.is_user_error
        if view.status in (*COMPLETE, "interrupted") or is_final_failure:
            if sweep.constraints:
                view = replace(view, infeasible=self._explain_infeasible(name, sweep))
            self._settled[name] = view
            del self._runs[name]
        return view

    def _explain_infeasible(self, name: str, sweep: SweepMetadata) -> str | None:
        trials = self.folder.storage / "trials"
        record = TrialRecord.read(RunFolder(trials, name), sweep.objectives)
        cells = read_measured_cells(record, self.folder, sweep.objectives)
        return Constraints(sweep.constraints).explain_infeasible(record.status, cells)


def _make_view_of_damage(name: str, damage: DamagedFile) -> TrialView:
    """Return the view of a trial with a damaged file. It counts as ended, but not as training of
    the sweep's last start."""
    return TrialView(
        name=name,
        status=damage.status,
        values={},
        best=None,
        last=None,
        started="",
        ended=None,
        stopped=(),
        error=str(damage),
        attempt_share=0.0,
    )


def _make_view_of_record(record: TrialRecord, metric: str, infeasible: str | None) -> TrialView:
    """Return the view of an ended trial, from its summary in the sweep's index."""
    return TrialView(
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


def _make_view_of_run(
    name: str, trial: LiveRun, metadata: RunMetadata, sweep: SweepMetadata
) -> TrialView:
    """Return the view of a trial from its files, of which `metadata` is `run.json`."""
    metric, mode = sweep.objectives[0]
    reports = trial.list_reports()
    best = find_best_report(select_comparable(reports, metadata.trial_settings.modes), metric, mode)
    values = [report[metric] for report in reports if metric in report]
    run = trial.read_view() if metadata.status == "running" else None
    return TrialView(
        name=name,
        status=find_status(trial.folder, metadata),
        values=metadata.trial_settings.values,
        best=best[metric] if best else None,
        last=_keep_number(values[-1]) if values else None,
        started=metadata.started,
        ended=metadata.ended,
        stopped=metadata.stopped,
        error=metadata.error,
        run=run,
        configuration=metadata.trial_settings.configuration,
        attempt_share=_compute_attempt_share(trial.folder, run, reports),
    )


def _keep_number(value: Any) -> float | None:
    """Return a reported value; None if it is missing, NaN or no number."""
    return value if is_number(value) else None


def _compute_attempt_share(
    trial: RunFolder, run: RunView | None, reports: Sequence[Mapping[str, Any]]
) -> float:
    """Return the share of a trial's training that its last attempt did. `run` is the state of a
    running trial."""
    if run:
        return run.progress.attempt_share or 0.0

    attempts = trial.read_attempts()
    if not attempts or not reports:
        return 1.0
    return 1 - attempts[-1].position.iteration / max(1, int(reports[-1]["iteration"]))

"""Trials of an earlier sweep from which Optuna learns (`search: {type: optuna, from: ...}`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.disk.statuses import COMPLETE
from orchestrator.disk.sweep_folder import open_sweep_folder
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.search.optuna_outcomes import Outcome
from orchestrator.sweeps.search.optuna_space import make_distribution, make_params
from orchestrator.tables.constraints import Constraints, make_measured_cells
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Records = Mapping[str, TrialRecord | DamagedFile]


def read_earlier_trials(path: str, sweep: SweepSettings) -> list[FrozenTrial]:
    """Return the ended trials of another sweep that fit this one, as Optuna has them.

    Raises UsageError if there is none.
    """
    folder = open_sweep_folder(path)
    records = TrialIndex(folder, sweep.objectives).read()
    trials = []
    for record in records.values():
        if isinstance(record, TrialRecord) and record.status in COMPLETE:
            trial = _make_trial(record, records, sweep)
            if trial is not None:
                trials.append(trial)
    if trials:
        return trials
    raise UsageError(
        f"sweep.search.from: no ended trial of {folder} has {', '.join(sweep.metrics)} and values inside"
        " this space"
    )


def _make_trial(record: TrialRecord, records: Records, sweep: SweepSettings) -> FrozenTrial | None:
    """Return a trial as Optuna has it; None if a value is outside the space, or a number is
    missing."""
    from optuna.trial import create_trial

    params = make_params(sweep, record.values)
    drawn = record.values.keys() & sweep.space.keys()
    is_outside = any(record.values[name] not in sweep.space[name] for name in drawn)
    if is_outside or not params or not record.compared_reports:
        return None

    last = record.compared_reports[-1]
    cells = make_measured_cells(record, record.get_leader(records))
    excesses = Constraints(sweep.constraints).measure(cells)
    outcome = Outcome([last[metric] for metric in sweep.metrics], excesses)
    if not outcome.is_complete():
        return None

    distributions = {}
    for name in params:
        domain = sweep.space[name]
        distributions[name] = make_distribution(domain, range(len(domain.values)))
    return create_trial(
        params=params,
        distributions=distributions,
        values=outcome.scores,
        constraints=dict(zip(sweep.constraints, outcome.excesses, strict=True)) or None,
    )

"""The record of a sweep's end: its status and its best trial."""

from dataclasses import asdict, replace
from typing import Any

from orchestrator.disk.best import BestConfiguration, BestTrial
from orchestrator.disk.rows.compaction import compact_rows
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import COMPLETE, Status
from orchestrator.disk.sweep_folder import SCRATCH
from orchestrator.disk.timestamps import format_now
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.sweeps.results.ranking import list_configurations
from orchestrator.sweeps.results.result import Sweep
from orchestrator.tables.trial_index import TrialIndex


def record_end(folder: RunFolder, settings: SweepSettings, *, interrupted: bool = False) -> Sweep:
    """Compact the rows of ended trials, and record the sweep's end."""
    folder.storage.delete(SCRATCH)
    _compact_trials(folder, TrialIndex(folder, settings.objectives))

    result = Sweep(folder)
    metadata = folder.read_metadata()
    status: Status = "finished"
    if interrupted:
        status = "interrupted"
    elif metadata.fail_fast and result.count_failed_trials():
        status = "failed"
    best = _find_best_trial(result)
    folder.run_file.replace(replace(metadata, status=status, ended=format_now(), best=best))
    return result


def _compact_trials(folder: RunFolder, index: TrialIndex) -> None:
    records = index.read()
    for name, record in records.items():
        if isinstance(record, DamagedFile) or record.compacted or record.status not in COMPLETE:
            continue
        is_compacted = compact_rows(RunFolder(folder.storage / "trials", name))
        records[name] = replace(record, compacted=is_compacted)
    index.write(records.values())


def _find_best_trial(result: Sweep) -> BestTrial | None:
    """Return the best trial, for `ls`; None if no trial has reported the sweep's metric."""
    try:
        trial = result.best
    except UsageError:
        return None
    if trial.best is None:
        return None

    entries: dict[str, Any] = {"trial": trial.name, **asdict(trial.best)}
    if result.repeats == 1:
        return BestTrial(**entries)
    best = list_configurations(result.trials, *result.objective, result.aggregate)[0]
    return BestConfiguration(
        **entries,
        configuration=best.number,
        mean=best.mean,
        description=best.describe(result.objective[0]),
    )

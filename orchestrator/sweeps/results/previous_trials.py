"""Trials of earlier attempts of a sweep: which of them a resume continues, and the time that they took."""

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.config.checks.space import count_trials
from orchestrator.config.sections.sweep import Sweep
from orchestrator.errors import DamagedFile
from orchestrator.records.metadata import RunMetadata, seconds_at
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.sweep_folder import trial_number
from orchestrator.stats.aggregate.trial_index import TrialIndex, TrialRecord


def load_previous_trials(sweep: RunFolder, settings: Sweep, *, rerun_failed: bool = False) -> dict[int, TrialRecord]:
    """Return the trials of earlier attempts by number. With `rerun_failed`, failed trials count as interrupted.

    Raises DamagedFile.
    """
    previous = {}
    for name, record in TrialIndex(sweep, settings.objectives).records().items():
        if isinstance(record, DamagedFile):
            raise record
        reruns = rerun_failed and record.status == "failed"
        previous[trial_number(name)] = replace(record, status="interrupted") if reruns else record
    return previous


def list_remaining_trials(settings: Sweep, previous: Mapping[int, TrialRecord]) -> list[int]:
    """Return the numbers of the trials that have not ended."""
    numbers = sorted({*range(count_trials(settings)), *previous})
    return [number for number in numbers if number not in previous or not previous[number].has_ended]


def compute_seconds_used(metadata: RunMetadata, previous: Mapping[int, TrialRecord]) -> float:
    """Return the time of a sweep's earlier attempts in seconds: from the start of each to its last report."""
    starts = [seconds_at(metadata.started), *(seconds_at(moment) for moment in metadata.resumed)]
    reports = [seconds_at(moment) for trial in previous.values() for moment in trial.reported]
    attempts = zip(starts, [*starts[1:], float("inf")], strict=True)
    return sum(
        max((moment for moment in reports if start <= moment < end), default=start) - start for start, end in attempts
    )

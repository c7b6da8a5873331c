"""Trials of earlier attempts of a sweep: which have ended, which resume, and their reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.checks.space import count_trials
from orchestrator.config.sections.sweep import Sweep
from orchestrator.errors import DamagedFile
from orchestrator.records.metadata import RunMetadata, seconds_at
from orchestrator.records.run_folder import COMPLETE, RunFolder
from orchestrator.records.sweep_folder import trial_number


@dataclass(frozen=True)
class PreviousTrial:
    """A trial that an earlier attempt of the sweep started."""

    values: dict[str, Any]
    """The trial's latest values."""
    has_ended: bool
    """True if it will not run again."""
    has_failed: bool = False
    reports: tuple[Mapping[str, Any], ...] = ()
    """The sweep's metrics and the samples of each valid report."""
    last_reports: tuple[str, ...] = ()
    """Time of each attempt's last report."""


def load_previous_trials(sweep: RunFolder, settings: Sweep, *, rerun_failed: bool = False) -> dict[int, PreviousTrial]:
    """Return the trials of earlier attempts by number. With `rerun_failed`, failed trials have not ended.

    Raises DamagedFile.
    """
    from orchestrator.stats.aggregate.trial_index import TrialIndex  # imports pandas

    previous = {}
    for name, record in TrialIndex(sweep, settings.objectives).records().items():
        if isinstance(record, DamagedFile):
            raise record
        has_failed = record.status == "failed"
        previous[trial_number(name)] = PreviousTrial(
            dict(record.values),
            has_ended=record.status in COMPLETE or (has_failed and not rerun_failed),
            has_failed=has_failed,
            reports=record.compared_reports,
            last_reports=tuple(record.reported),
        )
    return previous


def read_reports_with_metrics(folder: RunFolder, settings: Sweep) -> list[Mapping[str, Any]]:
    """Return a trial's valid reports that have all of the sweep's metrics, oldest first."""
    return [report for report in folder.read_current_reports() if settings.has_metrics(report)]


def list_remaining_trials(settings: Sweep, previous: Mapping[int, PreviousTrial]) -> list[int]:
    """Return the numbers of the trials that have not ended."""
    numbers = sorted({*range(count_trials(settings)), *previous})
    return [number for number in numbers if number not in previous or not previous[number].has_ended]


def compute_training_seconds(folder: RunFolder) -> float:
    """Return a trial's training time in seconds: from the start of each attempt to its last report."""
    starts = {attempt.number: seconds_at(attempt.started) for attempt in folder.read_attempts() if attempt.started}
    ends = {line["attempt"]: seconds_at(line["time"]) for line in folder.read_reports() if "time" in line}
    return float(sum(max(0, end - starts.get(attempt, end)) for attempt, end in ends.items()))


def compute_seconds_used(metadata: RunMetadata, previous: Mapping[int, PreviousTrial]) -> float:
    """Return the time of a sweep's earlier attempts in seconds: from the start of each to its last report."""
    starts = [seconds_at(metadata.started), *(seconds_at(moment) for moment in metadata.resumed)]
    reports = [seconds_at(moment) for trial in previous.values() for moment in trial.last_reports]
    attempts = zip(starts, [*starts[1:], float("inf")], strict=True)
    return sum(
        max((moment for moment in reports if start <= moment < end), default=start) - start for start, end in attempts
    )

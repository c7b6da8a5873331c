"""What an earlier attempt of a sweep has left: which trials are over, which go on, and what all have reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.checks.space import count_trials
from orchestrator.config.sections.sweep import Sweep
from orchestrator.errors import DamagedFile
from orchestrator.records.metadata import RunMetadata, seconds_at
from orchestrator.records.reports import counted_reports
from orchestrator.records.run_folder import ENDED, RunFolder
from orchestrator.records.sweep_folder import trial_number
from orchestrator.stats.aggregate.trial_index import TrialIndex


@dataclass(frozen=True)
class PreviousTrial:
    """A trial that an earlier attempt of the sweep has begun."""

    values: dict[str, Any]
    """What it has chosen; in a population, what it had last."""
    over: bool
    """Whether it is not run again."""
    failed: bool = False
    reports: tuple[Mapping[str, Any], ...] = ()
    """Of its reports that count and hold the sweep's metrics these, and the samples by then."""
    reported: tuple[str, ...] = ()
    """When each of its attempts made its last report."""


def previous_trials(sweep: RunFolder, settings: Sweep, *, failed_again: bool = False) -> dict[int, PreviousTrial]:
    """Return every trial begun so far, by number; raises DamagedFile.

    Those that failed are over, unless they are to be tried again.
    """
    previous = {}
    for name, record in TrialIndex(sweep, settings.objectives).records().items():
        if isinstance(record, DamagedFile):
            raise record
        failed = record.status == "failed"
        over = record.status in ENDED or (failed and not failed_again)
        previous[trial_number(name)] = PreviousTrial(
            dict(record.values), over, failed=failed, reports=record.judged_reports, reported=tuple(record.reported)
        )
    return previous


def reports_with_metrics(folder: RunFolder, settings: Sweep) -> list[Mapping[str, Any]]:
    """A trial's reports that count and hold all of the sweep's metrics, oldest first."""
    return [report for report in counted_reports(folder.reports(), folder.attempts()) if settings.has_metrics(report)]


def remaining_trials(settings: Sweep, previous: Mapping[int, PreviousTrial]) -> list[int]:
    """The numbers of the trials that are not over: those begun, and those to come."""
    numbers = sorted({*range(count_trials(settings)), *previous})
    return [number for number in numbers if number not in previous or not previous[number].over]


def training_seconds(folder: RunFolder) -> float:
    """How long a trial has trained so far: from the start of each attempt to its last report."""
    starts = {attempt.number: seconds_at(attempt.started) for attempt in folder.attempts() if attempt.started}
    ends = {line["attempt"]: seconds_at(line["time"]) for line in folder.reports() if "time" in line}
    return float(sum(max(0, end - starts.get(attempt, end)) for attempt, end in ends.items()))


def seconds_used(metadata: RunMetadata, previous: Mapping[int, PreviousTrial]) -> float:
    """How long the earlier attempts of a sweep took: from the start of each to the last report in it."""
    starts = [seconds_at(metadata.started), *(seconds_at(moment) for moment in metadata.resumed)]
    reported = [seconds_at(moment) for trial in previous.values() for moment in trial.reported]
    attempts = zip(starts, [*starts[1:], float("inf")], strict=True)
    return sum(
        max((moment for moment in reported if start <= moment < end), default=start) - start for start, end in attempts
    )

"""Earlier attempts of a sweep that is resumed: its trials, its time, and processes that still
run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic, sleep

from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_number
from orchestrator.disk.timestamps import seconds_at
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord

_ORPHAN_TIMEOUT_S = 30
"""Seconds to wait for the processes of a dead driver to exit."""


def load_previous_trials(
    sweep: RunFolder, settings: SweepSettings, *, rerun_failed: bool
) -> dict[int, TrialRecord]:
    """Return the trials of earlier attempts by number. With `rerun_failed`, failed trials count as
    interrupted.

    Raises DamagedFile.
    """
    previous = {}
    for name, record in TrialIndex(sweep, settings.objectives).read().items():
        if isinstance(record, DamagedFile):
            raise record
        if rerun_failed and record.status == "failed":
            record = replace(record, status="interrupted")
        previous[trial_number(name)] = record
    return previous


def compute_seconds_used(metadata: RunMetadata, previous: Mapping[int, TrialRecord]) -> float:
    """Return the time of a sweep's earlier attempts in seconds: from the start of each to its last
    report."""
    starts = [seconds_at(moment) for moment in (metadata.started, *metadata.resumed)]
    reports: list[float] = []
    for trial in previous.values():
        reports.extend(seconds_at(moment) for moment in trial.reported)

    seconds = 0.0
    for start, end in zip(starts, [*starts[1:], float("inf")], strict=True):
        last = max((moment for moment in reports if start <= moment < end), default=start)
        seconds += last - start
    return seconds


def wait_for_orphans(folder: RunFolder, names: Sequence[str]) -> bool:
    """Wait until the trial processes of a dead driver have ended: two processes must not write to
    the same trial.

    Returns:
        Whether there were any.

    Raises:
        UsageError: If a process is still there in the end.
    """
    trials = [RunFolder(folder.storage / "trials", name) for name in names]
    deadline = monotonic() + _ORPHAN_TIMEOUT_S
    waited = False
    while True:
        metadata = folder.storage.map(RunFolder.read_metadata, trials)
        alive = [trial for trial in metadata if _has_live_process(trial)]
        if not alive:
            return waited
        if monotonic() > deadline:
            raise UsageError(
                f"{alive[0].driver} is still training {folder}/trials/{alive[0].name}; stop it"
                " first"
            )
        waited = True
        sleep(0.5)


def _has_live_process(trial: RunMetadata) -> bool:
    process = trial.driver
    if trial.status != "running" or process is None:
        return False
    return process.is_visible() and process.is_alive()

"""Resuming a sweep. Runs in the driver."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from orchestrator.disk.lease import Lease
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import make_lease
from orchestrator.disk.sweep_folder import open_sweep_folder
from orchestrator.engines.ray_connection import choose_address
from orchestrator.errors import UsageError, errors_before_start
from orchestrator.experiment.load import to_yaml
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.process.streams import print_line
from orchestrator.runs.resume import load_experiment_to_resume
from orchestrator.runs.usage_hint import format_resume_command
from orchestrator.sweeps.earlier_attempts import (
    compute_seconds_used,
    load_previous_trials,
    wait_for_orphans,
)
from orchestrator.sweeps.end_record import record_end
from orchestrator.sweeps.requirements import check_can_run
from orchestrator.sweeps.results.result import Sweep
from orchestrator.sweeps.run_trials import run_trials
from orchestrator.sweeps.search.drawing import draw_points
from orchestrator.sweeps.search.search import list_remaining_trials
from orchestrator.sweeps.stored_settings import summarize_repeats, summarize_settings
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.units import format_count


def resume_sweep(
    path: str | Path, *, failed: bool = False, address: str | None = None, force_lease: bool = False
) -> Sweep:
    """Resume a sweep that was interrupted or lost its driver, with any edits made to the
    experiment.yaml in its folder.

    Finished trials stay as they are. The others resume from their newest checkpoint, or start if
    they have none.

    Args:
        path: The sweep's folder or URL.
        failed: Restart failed trials too.
        address: A Ray cluster to join, as in `run`.
        force_lease: Take the lease of a driver that died on another machine.

    Returns:
        The sweep.

    Raises:
        UsageError: If no trial is left, or if the sweep runs, perhaps on another machine.

    Example:
        ```python
        resume_sweep("runs/spirals-sweep", failed=True)
        ```
    """
    folder = open_sweep_folder(path)
    with make_lease(folder, force=force_lease) as lease:
        with errors_before_start():
            experiment = load_experiment_to_resume(folder)
        return resume_with_lease(folder, lease, experiment, failed=failed, address=address)


def resume_with_lease(
    folder: RunFolder, lease: Lease, experiment: Experiment, *, failed: bool, address: str | None
) -> Sweep:
    """Resume a sweep with an experiment as `resume_sweep` does, while the caller holds the sweep's
    lease."""
    with errors_before_start():
        metadata = folder.read_metadata()
        address = choose_address(address, local=metadata.local)
        settings = _get_settings(folder, experiment, metadata)
        previous = _load_idle_trials(folder, settings, rerun_failed=failed)
        _check_grid(folder, settings, previous)
        earlier_s = _measure_earlier_seconds(metadata, previous)

    if not list_remaining_trials(settings, previous):
        if metadata.status not in ("running", "interrupted"):
            raise _make_nothing_to_resume_error(folder, previous, failed=failed)
        print_line(f"Every trial of {folder} has ended; recording the result.")
        folder.run_file.resume(metadata, earlier_s)
        return record_end(folder, settings)

    check_can_run(experiment, settings, local=metadata.local, address=address)
    with errors_before_start():
        TrialIndex(folder, settings.objectives).write(previous.values())
        folder.write_experiment(to_yaml(experiment), experiment.source)
        changed = replace(metadata, sweep=summarize_settings(settings))
        folder.run_file.resume(changed, earlier_s)
    return run_trials(folder, experiment, previous, address, lease)


def _load_idle_trials(
    folder: RunFolder, settings: SweepSettings, *, rerun_failed: bool
) -> dict[int, TrialRecord]:
    """Return the trials of earlier attempts by number, once no process trains one of them. Raises
    UsageError if one still does in the end."""
    previous = load_previous_trials(folder, settings, rerun_failed=rerun_failed)
    unended = [trial.name for trial in previous.values() if not trial.has_ended]
    if not wait_for_orphans(folder, unended):
        return previous
    # Meanwhile they have reported, and some have ended.
    return load_previous_trials(folder, settings, rerun_failed=rerun_failed)


def _measure_earlier_seconds(metadata: RunMetadata, previous: Mapping[int, TrialRecord]) -> float:
    """Return the time of a sweep's earlier attempts in seconds; if its driver died, the trials'
    reports tell it."""
    if metadata.wall_s is not None:
        return metadata.wall_s
    return compute_seconds_used(metadata, previous)


def _get_settings(
    folder: RunFolder, experiment: Experiment, metadata: RunMetadata
) -> SweepSettings:
    """Return the sweep of an edited experiment; raises UsageError if it changes what must stay."""
    settings = experiment.sweep
    began_with = asdict(metadata.sweep) if metadata.sweep else {}
    if settings is None or not summarize_repeats(settings).items() <= began_with.items():
        raise UsageError(
            f"{folder}/experiment.yaml must have a sweep section with the original"
            " sweep.repeats; restore it"
        )
    return settings


def _check_grid(
    folder: RunFolder, settings: SweepSettings, previous: Mapping[int, TrialRecord]
) -> None:
    """Raise UsageError if edits of a grid have moved the points of trials that have begun, because
    the others would repeat some points and leave out others."""
    if settings.search.type != "grid" or isinstance(settings.scheduler, PBT):
        return
    points = draw_points(settings)
    for number, trial in previous.items():
        index = number // settings.repeat_count
        began_with = {path: trial.values[path] for path in settings.space if path in trial.values}
        if index < len(points) and points[index] != began_with:
            raise UsageError(
                f"{folder}/experiment.yaml: the edited sweep.space moves the point of {trial.name},"
                " which has begun. Change only values that no trial has begun with, append values to"
                " the first parameter, or start another sweep"
            )


def _make_nothing_to_resume_error(
    folder: RunFolder, previous: Mapping[int, TrialRecord], *, failed: bool
) -> UsageError:
    n_failed = sum(trial.status == "failed" for trial in previous.values())
    if n_failed and not failed:
        return UsageError(
            f"{n_failed} of {format_count(len(previous), 'trial')} of {folder} failed, and no other"
            " is left."
            f" To retry: {format_resume_command(folder)} --failed"
        )
    return UsageError(
        f"every trial of {folder} has ended, so there is nothing to resume."
        f" To see them: hookyard show {shlex.quote(str(folder))}"
    )

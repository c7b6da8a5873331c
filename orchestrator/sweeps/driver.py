"""Starting and resuming a sweep. Runs in the driver."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.disk.initial_weights import describe_initial_weights
from orchestrator.disk.lease import Lease
from orchestrator.disk.metadata import IfExists
from orchestrator.disk.new_run import create_run, taking_name
from orchestrator.disk.provenance import collect_provenance
from orchestrator.disk.run_folder import DEFAULT_STORAGE, RunFolder, errors_before_start
from orchestrator.disk.sweep_folder import open_sweep_folder
from orchestrator.engines.ray_connection import choose_address
from orchestrator.errors import UsageError
from orchestrator.experiment.load import check_experiment, to_dict, to_yaml
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.run_name import choose_run_name
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.trial_counts import count_trials
from orchestrator.process.streams import print_line
from orchestrator.runs.driver import format_resume_command, load_experiment_to_resume
from orchestrator.storage import Storage
from orchestrator.sweeps.earlier_attempts import (
    compute_seconds_used,
    load_previous_trials,
    wait_for_orphans,
)
from orchestrator.sweeps.end import record_end
from orchestrator.sweeps.launch import run_trials
from orchestrator.sweeps.requirements import check_can_run
from orchestrator.sweeps.results.result import Sweep
from orchestrator.sweeps.search.drawing import draw_points
from orchestrator.sweeps.search.search import list_remaining_trials
from orchestrator.tables.trial_index import TrialIndex
from orchestrator.tables.trial_record import TrialRecord
from orchestrator.units import format_count
from orchestrator.user_code import read_main_source


def sweep(
    experiment: Experiment,
    storage: str | Path = DEFAULT_STORAGE,
    name: str | None = None,
    *,
    local: bool = False,
    address: str | None = None,
    fail_fast: bool = False,
    if_exists: IfExists = "error",
) -> Sweep:
    """Run the trials of a sweep.

    Args:
        experiment: An experiment with a `sweep`.
        storage: Where runs are kept: a folder, or a URL of an object store.
        name: Name of the sweep; by default the experiment's.
        local: Run the trials one after the other in this process, with one rank each and without
            Ray.
        address: A Ray cluster to join, as in `run`.
        fail_fast: End the sweep when a trial fails; by default the others continue.
        if_exists: What to do about a sweep of this name, as in `run`.

    Returns:
        The sweep, with its trials as tables and runs.

    Raises:
        UsageError: If the name is taken, an extra is missing, or no trial fits on the cluster.
        RunError: If the sweep itself failed.

    Example:
        ```python
        experiment = load_experiment("spirals_sweep.yaml", ["epochs=2"])
        done = sweep(experiment, local=True, if_exists="number")
        done.best.load()
        ```
    """
    experiment = check_experiment(experiment)
    settings = _get_settings(experiment)
    address = choose_address(address, local=local)
    Storage(storage).reach()
    check_can_run(experiment, settings, local=local, address=address)
    init = describe_initial_weights(experiment)  # raises ConfigError before a trial starts
    metadata = _collect_metadata(experiment, settings, local=local, fail_fast=fail_fast)

    wanted = RunFolder(storage, choose_run_name(name, experiment.name))
    read_folders = [Storage(init["path"])] if init else []
    with taking_name(wanted, if_exists, read_folders) as (folder, lease):
        folder = create_run(storage, folder.name, to_yaml(experiment), **metadata)
        return run_trials(folder, experiment, {}, address, lease)


def _get_settings(experiment: Experiment) -> SweepSettings:
    """Return the sweep of an experiment; raises UsageError if there is none that can start."""
    if experiment.sweep is None:
        raise UsageError(
            f"{experiment.name} has no `sweep` section; add one, or use `hookyard run` (run() in"
            " Python)"
        )
    if experiment.source.continued_from:
        raise UsageError(
            f"a sweep cannot continue from {experiment.source.continued_from}; set init.from"
            " instead"
        )
    return experiment.sweep


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
    with folder.lease(force=force_lease) as lease:
        return resume(folder, lease, failed=failed, address=address)


def resume(folder: RunFolder, lease: Lease, *, failed: bool, address: str | None) -> Sweep:
    """Resume a sweep as `resume_sweep` does, while the caller holds its lease."""
    with errors_before_start():
        metadata = folder.read_metadata()
        address = choose_address(address, local=metadata.local)
        experiment = load_experiment_to_resume(folder)
        settings = experiment.sweep
        began_with = asdict(metadata.sweep) if metadata.sweep else {}
        if settings is None or not _summarize_repeats(settings).items() <= began_with.items():
            raise UsageError(
                f"{folder}/experiment.yaml must have a sweep section with the original"
                " sweep.repeats; restore it"
            )
        previous = load_previous_trials(folder, settings, rerun_failed=failed)
        _check_grid(folder, settings, previous)
        earlier_s = metadata.wall_s
        if earlier_s is None:  # its driver died
            earlier_s = compute_seconds_used(metadata, previous)

    if not list_remaining_trials(settings, previous):
        if metadata.status not in ("running", "interrupted"):
            raise _make_nothing_to_resume_error(folder, previous, failed=failed)
        print_line(f"Every trial of {folder} has ended; recording the result.")
        folder.resume(earlier_s=earlier_s)
        return record_end(folder, settings)

    check_can_run(experiment, settings, local=metadata.local, address=address)
    with errors_before_start():
        TrialIndex(folder, settings.objectives).write(previous.values())
        continued = [trial.name for trial in previous.values() if not trial.has_ended]
        wait_for_orphans(folder, continued)
        folder.write_experiment(to_yaml(experiment), experiment.source)
        folder.resume(sweep=_summarize(settings), earlier_s=earlier_s)
    return run_trials(folder, experiment, previous, address, lease)


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


def _collect_metadata(
    experiment: Experiment, settings: SweepSettings, *, local: bool, fail_fast: bool
) -> dict[str, Any]:
    """Collect the entries of `run.json` that are known before a sweep starts."""
    return {
        **collect_provenance(experiment.import_paths),
        "code": read_main_source(to_dict(experiment)),
        "source": experiment.source,
        "tags": experiment.tags,
        "notes": experiment.notes,
        "local": local,
        "fail_fast": fail_fast,
        "sweep": _summarize(settings),
    }


def _summarize(settings: SweepSettings) -> dict[str, Any]:
    """Return the sweep settings to store in run.json."""
    return {
        "objectives": settings.objectives,
        "trials": count_trials(settings),
        **_summarize_repeats(settings),
        "aggregate": settings.aggregate,
        "constraints": settings.constraints,
    }


def _summarize_repeats(settings: SweepSettings) -> dict[str, Any]:
    is_seed = isinstance(settings.repeats, int)
    return {
        "repeats": settings.repeat_count,
        "repeated_path": settings.repeated_path,
        "repeated_values": [] if is_seed else settings.list_repeated_values(0),
    }

"""The driver of a sweep: runs its trials under Ray Tune or in this process, and shows their
progress."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from hooks.state import Display
from orchestrator.disk.lease import Lease, Process
from orchestrator.disk.metadata import COMPLETE, IfExists, RunMetadata, now, seconds_at
from orchestrator.disk.new_run import create_run, taking_name
from orchestrator.disk.provenance import collect_provenance
from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.run_folder import DEFAULT_STORAGE, RunFolder, errors_before_start
from orchestrator.disk.sweep_folder import SCRATCH, open_sweep_folder, trial_number
from orchestrator.engines.lifecycle import recording_failure
from orchestrator.engines.ray_environment import (
    Ray,
    Resources,
    choose_address,
    describe_connection,
    read_environment,
)
from orchestrator.engines.script_classes import with_classes_of_main
from orchestrator.errors import DamagedFile, MetricMissing, UsageError
from orchestrator.experiment.fields.plain_data import read_main_source
from orchestrator.experiment.load import check_experiment, to_dict, to_yaml
from orchestrator.experiment.sections.experiment import Experiment, check_run_name
from orchestrator.experiment.sections.sweep import Sweep as SweepSettings
from orchestrator.experiment.sweep.space import count_concurrent_trials, count_trials
from orchestrator.loop.model.initial_weights import describe_initial_weights
from orchestrator.runs.driver import format_resume_command, load_experiment_to_resume
from orchestrator.storage import Storage
from orchestrator.sweeps.results.analysis import list_configurations
from orchestrator.sweeps.results.result import Sweep
from orchestrator.sweeps.running_sweep import RunningSweep
from orchestrator.sweeps.search.search import list_remaining_trials
from orchestrator.tables.trial_index import TrialIndex, TrialRecord
from orchestrator.terminal.display import TerminalDisplay, print_line
from orchestrator.terminal.frames import LiveFrame
from orchestrator.terminal.hang_reporter import HangReporter
from orchestrator.terminal.interrupts import Interrupts
from orchestrator.terminal.notebook import NotebookDisplay, is_notebook

_ORPHAN_TIMEOUT_S = 30
"""Seconds to wait for the processes of a dead driver to exit."""


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
    """Run the trials of a sweep. A failed trial ends it only if `fail_fast` is set.

    With `local` the trials run one after the other in this process, with one rank each. `if_exists`
    is as in `run`.

    Raises UsageError if the name is taken, an extra is missing, or no trial fits; RunError if the
    sweep itself failed.
    """
    experiment = check_experiment(experiment)
    settings = experiment.sweep
    if settings is None:
        raise UsageError(
            f"{experiment.name} has no `sweep` section; add one, or use `hookyard run` (run() in Python)"
        )
    if experiment.source.continued_from:
        raise UsageError(
            f"a sweep cannot continue from {experiment.source.continued_from}; set init.from instead"
        )
    address = choose_address(address, local=local)
    Storage(storage).reach()
    _check_requirements(experiment, settings, local, address)
    init = describe_initial_weights(experiment)  # raises ConfigError before a trial starts
    metadata = {
        **collect_provenance(experiment.import_paths),
        "source": experiment.source,
        "tags": experiment.tags,
        "notes": experiment.notes,
        "local": local,
        "fail_fast": fail_fast,
        "sweep": _summarize(settings),
    }
    wanted = RunFolder(storage, check_run_name(experiment, name))
    with taking_name(wanted, if_exists, [Storage(init["path"])] if init else []) as (folder, lease):
        folder = create_run(
            storage,
            folder.name,
            to_yaml(experiment),
            code=read_main_source(to_dict(experiment)),
            **metadata,
        )
        return _run_trials(folder, experiment, {}, address, lease)


def resume_sweep(
    path: str | Path, *, failed: bool = False, address: str | None = None, force_lease: bool = False
) -> Sweep:
    """Resume a sweep that was interrupted or lost its driver, with any edits made to the
    experiment.yaml in its folder. Finished trials stay as they are; the others resume from their
    newest checkpoint, or start if they have none. With `failed`, failed trials restart too.

    Raises UsageError if no trial is left, or, without `force_lease`, if the sweep runs, perhaps on
    another machine.
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
        if settings is None or metadata.sweep is None or settings.repeats != metadata.sweep.repeats:
            raise UsageError(
                f"{folder}/experiment.yaml must have a sweep section with the original sweep.repeats; restore it"
            )
        previous = load_previous_trials(folder, settings, rerun_failed=failed)
    if not list_remaining_trials(settings, previous):
        if metadata.status in ("running", "interrupted"):
            print_line(f"All {len(previous)} trials of {folder} have ended; recording the result.")
            return _conclude(folder, settings)
        count = sum(trial.status == "failed" for trial in previous.values())
        hint = (
            f"; use --failed to run failed trials again ({count})" if count and not failed else ""
        )
        raise UsageError(
            f"all {len(previous)} trials of {folder} have ended; there is nothing to resume{hint}"
        )
    _check_requirements(experiment, settings, metadata.local, address)
    with errors_before_start():
        TrialIndex(folder, settings.objectives).write(previous.values())
        _wait_for_orphans(
            folder, [trial.name for trial in previous.values() if not trial.has_ended]
        )
        folder.write_experiment(to_yaml(experiment), experiment.source)
        folder.update(
            status="running",
            error=None,
            stopped=[],
            sweep=_summarize(settings),
            resumed=[*metadata.resumed, now()],
            **asdict(Process.this()),
        )
    return _run_trials(folder, experiment, previous, address, lease)


def load_previous_trials(
    sweep: RunFolder, settings: SweepSettings, *, rerun_failed: bool
) -> dict[int, TrialRecord]:
    """Return the trials of earlier attempts by number. With `rerun_failed`, failed trials count as
    interrupted.

    Raises DamagedFile.
    """
    previous = {}
    for name, record in TrialIndex(sweep, settings.objectives).records().items():
        if isinstance(record, DamagedFile):
            raise record
        reruns = rerun_failed and record.status == "failed"
        previous[trial_number(name)] = replace(record, status="interrupted") if reruns else record
    return previous


def compute_seconds_used(metadata: RunMetadata, previous: Mapping[int, TrialRecord]) -> float:
    """Return the time of a sweep's earlier attempts in seconds: from the start of each to its last
    report."""
    starts = [seconds_at(metadata.started), *(seconds_at(moment) for moment in metadata.resumed)]
    reports = [seconds_at(moment) for trial in previous.values() for moment in trial.reported]
    attempts = zip(starts, [*starts[1:], float("inf")], strict=True)
    return sum(
        max((moment for moment in reports if start <= moment < end), default=start) - start
        for start, end in attempts
    )


def _wait_for_orphans(folder: RunFolder, names: Sequence[str]) -> None:
    """Wait until the trial processes of a dead driver have ended: two processes must not write to
    the same trial."""

    def has_live_process(trial: RunMetadata) -> bool:
        process = trial.driver
        return (
            trial.status == "running"
            and process is not None
            and process.is_visible()
            and process.is_alive()
        )

    trials = [RunFolder(folder.storage / "trials", name) for name in names]
    deadline = monotonic() + _ORPHAN_TIMEOUT_S
    while alive := [
        trial
        for trial in folder.storage.map(RunFolder.read_metadata, trials)
        if has_live_process(trial)
    ]:
        if monotonic() > deadline:
            raise UsageError(
                f"process {alive[0].pid} is still training {folder}/trials/{alive[0].name}; stop it first"
            )
        sleep(0.5)


def _summarize(settings: SweepSettings) -> dict[str, Any]:
    """Return the sweep settings to store in run.json."""
    return {
        "objectives": settings.objectives,
        "trials": count_trials(settings),
        "repeats": settings.repeats,
        "aggregate": settings.aggregate,
    }


def _run_trials(
    folder: RunFolder,
    experiment: Experiment,
    previous: Mapping[int, TrialRecord],
    address: str | None,
    lease: Lease,
) -> Sweep:
    settings, metadata = experiment.sweep, folder.read_metadata()
    assert settings is not None
    # Tune would handle Ctrl-C itself.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    command = format_resume_command(folder)
    note = "Each trial ends at its next report; `hookyard resume` continues it from its newest checkpoint."
    display_type = NotebookDisplay if is_notebook() else TerminalDisplay
    with (
        recording_failure(folder),
        display_type(folder.storage, LiveFrame(folder)) as display,
        Interrupts(command, note) as interrupts,
    ):

        def is_stop_requested() -> bool:
            lease.check()
            return interrupts.requested

        running = RunningSweep(
            experiment,
            folder,
            previous,
            display,
            ranks=1 if metadata.local else experiment.workers.max_count,
            seconds_used=compute_seconds_used(metadata, previous),
            fail_fast=metadata.fail_fast,
            stop_requested=is_stop_requested,
        )
        hang_reporter = HangReporter(running.active_trials, display, lambda: interrupts.requested)
        if metadata.local:
            from orchestrator.sweeps.in_process import SequentialTrials

            with hang_reporter:
                SequentialTrials(running, interrupts.fail).run()
        else:
            _run_on_ray(running, address, display, hang_reporter)
            if interrupts.requested:
                print_line(f"Interrupted. To continue: {command}")
        if running.rules.metric_missing:
            raise MetricMissing(running.rules.metric_missing)
    return _conclude(folder, settings, interrupts.requested)


def _run_on_ray(
    sweep: RunningSweep, address: str | None, display: Display, hang_reporter: HangReporter
) -> None:
    """Run the remaining trials under Ray Tune, as many at a time as fit."""
    experiment, settings, previous = sweep.experiment, sweep.settings, sweep.previous
    display.line(describe_connection(address))
    with Ray(address, environment=read_environment(experiment.environment)) as ray:
        from orchestrator.sweeps.tune.launch import launch

        max_concurrent, explanation = _compute_concurrency(ray, experiment, settings)
        count = f"{len(list_remaining_trials(settings, previous))} {'remaining ' if previous else ''}trials"
        display.line(
            f"{count} of {experiment.workers.describe('rank')}, {max_concurrent} at a time: {explanation}"
        )
        with hang_reporter:
            launch(sweep, max_concurrent)


def _conclude(folder: RunFolder, settings: SweepSettings, interrupted: bool = False) -> Sweep:
    """Compact the rows of ended trials, and record the sweep's end."""
    folder.storage.delete(SCRATCH)
    index = TrialIndex(folder, settings.objectives)
    records = index.records()
    for name, record in records.items():
        if isinstance(record, TrialRecord) and record.status in COMPLETE and not record.compacted:
            trial = RunFolder(folder.storage / "trials", name)
            compact(trial.storage, trial.read_attempts())
            records[name] = replace(record, compacted=True)
    index.write(records.values())
    result = Sweep(folder)
    ended_by_failure = folder.read_metadata().fail_fast and count_failed_trials(result) > 0
    status = "interrupted" if interrupted else "failed" if ended_by_failure else "finished"
    folder.update(status=status, ended=now(), best=_describe_best_trial(result))
    return result


def _describe_best_trial(result: Sweep) -> dict[str, Any] | None:
    """Return the best trial's entry for `ls`; None if no trial has reported the sweep's metric."""
    try:
        trial = result.best
    except UsageError:
        return None
    if trial.best is None:
        return None
    if result.repeats == 1:
        return {"trial": trial.name, **asdict(trial.best)}
    best = list_configurations(result.trials, *result.objective, result.aggregate)[0]
    group = {
        "configuration": best.number,
        "mean": best.mean,
        "description": best.describe(result.objective[0]),
    }
    return {"trial": trial.name, **asdict(trial.best), **group}


def _check_requirements(
    experiment: Experiment, settings: SweepSettings, local: bool, address: str | None
) -> None:
    """Raise UsageError if an extra or a resource of this machine is missing, or if --local cannot
    run the scheduler."""
    read_environment(experiment.environment)  # raises UsageError for an unset variable
    if settings.search == "optuna" and find_spec("optuna") is None:
        raise UsageError(
            "search: optuna needs the package optuna, which is not installed:"
            " pip install 'hookyard[optuna]'"
        )
    if not local:
        with_classes_of_main(experiment.source, address)  # raises UsageError if they cannot be sent
    from orchestrator.engines.in_process import check_local_resources

    check_local_resources(
        experiment.workers, f"each trial of {experiment.name}", address, local=local
    )
    if local and settings.scheduler.waits_for_others:
        raise UsageError(
            f"{settings.scheduler.type} needs concurrent trials; leave out --local, or use fifo, asha, median or race"
        )
    if local and settings.max_concurrent:
        print_line(
            "sweep.max_concurrent: has no effect with --local, which runs one trial at a time"
        )


def _compute_concurrency(
    ray: Any, experiment: Experiment, settings: SweepSettings
) -> tuple[int, str]:
    """Return how many trials run at a time, and why. Raises UsageError if none fits."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    workers = experiment.workers
    names = dict.fromkeys(["CPU", "GPU", *workers.bundle()])
    available = Resources({name: sum(node.get(name, 0) for node in nodes) for name in names})
    where = f"{available}" if len(nodes) == 1 else f"{available} on {len(nodes)} nodes"
    qualifier = "at least " if workers.min_count < workers.max_count else ""
    explanation = f"each needs {qualifier}{Resources.required_by(workers)}; the cluster has {where}"
    max_concurrent = count_concurrent_trials(settings, count_trials(settings), workers, nodes)
    if max_concurrent < 1:
        raise UsageError(
            f"no trial fits: {explanation}, and each of its {workers.min_count} ranks must fit on one node; reduce"
            " `workers`, or use --address"
        )
    return max_concurrent, explanation


def count_failed_trials(result: Sweep) -> int:
    """Count the failed and lost trials of an ended sweep."""
    records = result.records().values()
    return sum(
        isinstance(record, DamagedFile) or record.status not in (*COMPLETE, "interrupted")
        for record in records
    )

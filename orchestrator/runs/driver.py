"""Starting and resuming a run. Runs in the driver."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.disk.initial_weights import describe_initial_weights
from orchestrator.disk.lease import Lease
from orchestrator.disk.metadata import COMPLETE, EngineName, IfExists, RunMetadata
from orchestrator.disk.new_run import create_run, taking_name
from orchestrator.disk.run_folder import DEFAULT_STORAGE, RunFolder
from orchestrator.errors import CheckpointError, UsageError, errors_before_start
from orchestrator.experiment.edits import apply_edits
from orchestrator.experiment.load import (
    check_experiment,
    make_experiment_from_source,
    to_dict,
    to_yaml,
)
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.run_name import choose_run_name
from orchestrator.experiment.sections.workers import make_rank_count_overrides
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.runs.engine_choice import EngineChoice
from orchestrator.runs.launch import collect_launch_metadata, drive
from orchestrator.runs.launch_checks import check_can_run
from orchestrator.runs.result import Run
from orchestrator.runs.resume_checks import (
    check_same_initial_weights,
    check_same_loader_workers,
    check_same_optimizers,
    check_same_ranks,
    has_edited_init,
    make_edited_init_error,
)
from orchestrator.runs.usage_hint import make_usage_hint
from orchestrator.storage import Storage
from orchestrator.units import format_count
from orchestrator.user_code.main_definitions import read_main_source


def run(
    experiment: Experiment,
    storage: str | Path = DEFAULT_STORAGE,
    name: str | None = None,
    *,
    engine: EngineName | None = None,
    local: bool = False,
    address: str | None = None,
    if_exists: IfExists = "error",
) -> Run:
    """Run an experiment to its end.

    Args:
        experiment: The experiment, from a file or created in Python.
        storage: Where runs are kept: a folder, or a URL of an object store.
        name: Name of the run; by default the experiment's.
        engine: `train` (Ray Train, the default), `gang` (a process for each rank, which starts
            sooner), or `in-process` (a single rank in this process).
        local: The same as `engine="in-process"`, which needs no Ray.
        address: A Ray cluster to join; by default RAY_ADDRESS, otherwise Ray starts on this
            machine.
        if_exists: What to do about a run of this name: `error` refuses, `number` takes NAME-2,
            NAME-3 and so on, and `replace` removes that run with all its files, unless it is
            running.

    Returns:
        The run. An interrupted one has the status `interrupted`.

    Raises:
        UsageError: If the name is taken or the machine is too small, before anything starts.
        RunError: If the run fails.

    Example:
        ```python
        experiment = load_experiment("spirals.yaml", ["epochs=5"])
        done = run(experiment, local=True, if_exists="number")
        done.metrics["val/accuracy"].max()
        ```
    """
    experiment = check_experiment(experiment)
    if experiment.sweep is not None:
        raise UsageError(
            f"{experiment.name} has a `sweep` section; use `hookyard sweep` (sweep() in Python)"
        )
    chosen = EngineChoice.make(engine, address, local=local)
    Storage(storage).reach()
    check_can_run(experiment, chosen)
    read_folders = []
    parent = experiment.source.continued_from
    if parent:
        folder = RunFolder(Storage(storage).at(parent.run))
        check_same_ranks(folder, parent.checkpoint, experiment, chosen.name)
        check_same_loader_workers(folder, parent.checkpoint, experiment, chosen.name)
        read_folders.append(folder.storage)
    metadata = _collect_metadata(experiment, chosen)
    if metadata["init"]:
        read_folders.append(Storage(metadata["init"]["path"]))

    wanted = RunFolder(storage, choose_run_name(name, experiment.name))
    with taking_name(wanted, if_exists, read_folders) as (folder, lease):
        folder = create_run(storage, folder.name, to_yaml(experiment), **metadata)
        drive(folder, experiment, chosen, lease, resume_with=format_resume_command(folder))
    return Run(folder)


def _collect_metadata(experiment: Experiment, engine: EngineChoice) -> dict[str, Any]:
    """Collect the entries of `run.json` that a new run begins with."""
    parent = experiment.source.continued_from
    return {
        **collect_launch_metadata(experiment, engine),
        "tags": experiment.tags,
        "notes": experiment.notes,
        "continued_from": parent and asdict(parent),
        "code": read_main_source(to_dict(experiment)),
    }


def resume(
    path: str | Path,
    *,
    workers: int | None = None,
    address: str | None = None,
    force_lease: bool = False,
    from_start: bool = False,
) -> Run:
    """Resume a run that was interrupted, failed, or lost its driver, from its last intact
    checkpoint, with any edits made to the experiment.yaml in its folder.

    Without edits, training continues bit for bit. Values that the checkpoint fits may be edited, such
    as `epochs`, `loader.num_workers`, `optimizer.lr` and the fields of hooks. An edit of `name` is
    an error, and so is one of `init` if there is a checkpoint, because they count only when a run
    begins.

    Args:
        path: The run's folder or URL.
        workers: Number of ranks from now on; by default as before.
        address: A Ray cluster to join, as in `run`.
        force_lease: Take the lease of a driver that died on another machine, without waiting until
            it expires.
        from_start: Delete damaged checkpoints and train from the beginning, if none is usable.

    Returns:
        The run.

    Raises:
        UsageError: If there is nothing to resume, all checkpoints are damaged, or the run has a
            driver; if an edit is wrong or does not fit the checkpoint.
        RunError: If the run fails.

    Example:
        ```python
        resume("runs/spirals", workers=1)
        ```
    """
    with errors_before_start():
        folder = RunFolder.open(path)
        metadata = folder.read_metadata()
    if metadata.sweep:
        raise UsageError(f"{folder} is a sweep; resume it with resume_sweep (hookyard resume)")
    with folder.lease(force=force_lease) as lease:
        return resume_with_lease(
            folder, lease, workers=workers, address=address, from_start=from_start
        )


def resume_with_lease(
    folder: RunFolder, lease: Lease, *, workers: int | None, address: str | None, from_start: bool
) -> Run:
    """Resume a run as `resume` does, while the caller holds its lease."""
    with errors_before_start():
        metadata = folder.read_metadata()
        _check_can_resume(folder, metadata)
        experiment = load_experiment_to_resume(folder, workers)
        engine = EngineChoice.of_run(metadata, address)
        check_can_run(experiment, engine)
        checkpoint = None if from_start else _find_newest_checkpoint(folder)
        if checkpoint:
            _check_checkpoint_fits(folder, checkpoint, experiment, engine)
        else:
            _take_edited_init(folder, experiment)
        if from_start:
            _delete_checkpoints(folder, experiment)
        folder.write_experiment(to_yaml(experiment), experiment.source)
        folder.resume()
    drive(folder, experiment, engine, lease, resume_with=format_resume_command(folder))
    return Run(folder)


def _check_can_resume(folder: RunFolder, metadata: RunMetadata) -> None:
    """Raise UsageError for a complete run, and for an evaluation."""
    if metadata.status in COMPLETE:
        raise UsageError(f"{folder} has {metadata.status}{_describe_longer(folder, metadata)}")
    evaluated = metadata.evaluates
    if evaluated:
        raise UsageError(
            f"{folder} is {evaluated.noun_with_article}, which cannot be resumed. Start it again:"
            f" {evaluated.format_command(folder.parent_run)}"
        )


def _describe_longer(folder: RunFolder, metadata: RunMetadata) -> str:
    """Say how to train a complete run longer, or why that is no use."""
    if metadata.diverged:
        return f", but diverged: {metadata.diverged}. Change the experiment and start a new run"
    return f". To train it longer, set a new total: {make_usage_hint(folder, 'last').command}"


def _delete_checkpoints(folder: RunFolder, experiment: Experiment) -> None:
    """Delete all checkpoints, to train from the beginning; raises UsageError if that is another
    run's checkpoint."""
    parent = experiment.source.continued_from
    if parent:
        raise UsageError(
            f"{folder} was continued from {parent}. To start from there again: hookyard run"
            f" {parent.run}@{parent.checkpoint}"
        )
    open_checkpoints(folder).clear()


def _take_edited_init(folder: RunFolder, experiment: Experiment) -> None:
    """Record the initial weights of a run that begins again, if its `init` was edited."""
    if not has_edited_init(folder, experiment):
        return
    parent = experiment.source.continued_from
    if parent:
        raise make_edited_init_error(folder, str(parent))
    folder.update(init=describe_initial_weights(experiment))


def _check_checkpoint_fits(
    folder: RunFolder, checkpoint: str, experiment: Experiment, engine: EngineChoice
) -> None:
    """Raise UsageError if training cannot continue from a checkpoint with an experiment."""
    check_same_initial_weights(folder, checkpoint, experiment)
    check_same_optimizers(folder, checkpoint, experiment)
    check_same_ranks(folder, checkpoint, experiment, engine.name)
    check_same_loader_workers(folder, checkpoint, experiment, engine.name)


def _find_newest_checkpoint(folder: RunFolder) -> str | None:
    """Return the newest checkpoint, if any; raises UsageError if all are damaged."""
    store = open_checkpoints(folder)
    store.recover()
    # The ranks need these files, so a damaged one ends the resume here.
    store.index.read()
    folder.read_attempts()
    try:
        return store.find_latest(check_hashes=False)
    except CheckpointError as error:
        lost = "its training"
        reports = folder.read_current_reports()
        if reports:
            count = format_count(len(reports), "report")
            lost = f"its {count}, up to step {reports[-1].get('step')}"
        raise UsageError(
            f"{error}\nNothing was started. {format_resume_command(folder)} --from-start restarts it, and discards"
            f" these checkpoints and {lost}"
        ) from error


def load_experiment_to_resume(folder: RunFolder, workers: int | None = None) -> Experiment:
    """Return an experiment with edits of its experiment.yaml, and with `workers` ranks if given;
    raises ConfigError."""
    experiment = apply_edits(folder.read_source(), folder.read_experiment_text())
    if workers is None:
        return experiment
    return make_experiment_from_source(
        experiment.source.with_values(make_rank_count_overrides(workers))
    )


def format_resume_command(folder: RunFolder) -> str:
    """Return the command that resumes a run or a sweep."""
    return f"hookyard resume {shlex.quote(str(folder))}"

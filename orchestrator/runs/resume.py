"""Resuming a run. Runs in the driver."""

from dataclasses import replace
from pathlib import Path

from orchestrator.disk.evaluations import get_evaluated_run
from orchestrator.disk.initial_weights import find_initial_weights
from orchestrator.disk.lease import Lease
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import make_lease
from orchestrator.errors import CheckpointError, ConfigError, UsageError, errors_before_start
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.edits import apply_edits
from orchestrator.experiment.load import make_experiment_from_source, to_yaml
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import make_rank_count_overrides
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.runs.continued_checkpoint import ContinuedCheckpoint
from orchestrator.runs.engine_choice import EngineChoice
from orchestrator.runs.evaluation_words import format_command, name_with_article
from orchestrator.runs.launch import drive
from orchestrator.runs.launch_checks import check_can_run
from orchestrator.runs.result import Run
from orchestrator.runs.usage_hint import format_resume_command, make_usage_hint
from orchestrator.units import format_count


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
    with make_lease(folder, force=force_lease) as lease:
        with errors_before_start():
            experiment = load_experiment_to_resume(folder, workers)
        return resume_with_lease(folder, lease, experiment, address=address, from_start=from_start)


def resume_with_lease(
    folder: RunFolder,
    lease: Lease,
    experiment: CheckedExperiment,
    *,
    address: str | None,
    from_start: bool,
) -> Run:
    """Resume a run with an experiment as `resume` does, while the caller holds the run's lease."""
    with errors_before_start():
        metadata = folder.read_metadata()
        _check_can_resume(folder, metadata)
        engine = EngineChoice.of_run(metadata, address)
        check_can_run(experiment, engine)
        if from_start:
            _delete_damaged_checkpoints(folder, experiment)
        checkpoint = _find_newest_checkpoint(folder)
        if checkpoint:
            _check_checkpoint_fits(folder, checkpoint, experiment, engine)
        else:
            _take_edited_init(folder, experiment)
        folder.write_experiment(to_yaml(experiment), experiment.source)
        folder.run_file.resume(folder.read_metadata())
    drive(folder, experiment, engine, lease, resume_with=format_resume_command(folder))
    return Run(folder)


def _check_can_resume(folder: RunFolder, metadata: RunMetadata) -> None:
    """Raise UsageError for a complete run, and for an evaluation."""
    if metadata.is_complete:
        raise UsageError(f"{folder} has {metadata.status}{_describe_longer(folder, metadata)}")
    evaluated = metadata.evaluates
    if evaluated:
        raise UsageError(
            f"{folder} is {name_with_article(evaluated)}, which cannot be resumed. Start it again:"
            f" {format_command(evaluated, get_evaluated_run(folder))}"
        )


def _describe_longer(folder: RunFolder, metadata: RunMetadata) -> str:
    """Say how to train a complete run longer, or why that is no use."""
    if metadata.diverged:
        return f", but diverged: {metadata.diverged}. Change the experiment and start a new run"
    return f". To train it longer, set a new total: {make_usage_hint(folder, 'last').command}"


def _delete_damaged_checkpoints(folder: RunFolder, experiment: Experiment) -> None:
    """Delete all checkpoints, to train from the beginning.

    Raises UsageError if one is intact, or if the run begins with another run's checkpoint.
    """
    parent = experiment.source.continued_from
    if parent:
        raise UsageError(
            f"{folder} was continued from {parent}. To start from there again: hookyard run"
            f" {parent.run}@{parent.checkpoint}"
        )
    store = open_checkpoints(folder)
    store.recover()
    try:
        intact = store.find_latest().name
    except CheckpointError:
        intact = None
    if intact:
        raise UsageError(
            f"{folder} has an intact checkpoint, {intact}, and would lose it. To continue from it:"
            f" {format_resume_command(folder)}. To train from the beginning, start another run"
        )
    store.clear()


def _take_edited_init(folder: RunFolder, experiment: Experiment) -> None:
    """Record the initial weights of a run that begins again, if its `init` was edited."""
    if not has_edited_init(folder, experiment):
        return
    parent = experiment.source.continued_from
    if parent:
        raise _make_edited_init_error(folder, str(parent))
    metadata = folder.read_metadata()
    folder.run_file.replace(replace(metadata, init=find_initial_weights(experiment)))


def _check_checkpoint_fits(
    folder: RunFolder, name: str, experiment: Experiment, engine: EngineChoice
) -> None:
    """Raise UsageError if training cannot continue from a checkpoint with an experiment."""
    checkpoint = ContinuedCheckpoint.read(folder, name)
    if has_edited_init(folder, experiment):
        raise _make_edited_init_error(folder, checkpoint.path)
    checkpoint.check_optimizers(experiment)
    checkpoint.check_processes(experiment, engine.name)


def has_edited_init(folder: RunFolder, experiment: Experiment) -> bool:
    """Return whether an experiment has another `init` than the run's source."""
    source = folder.read_source()
    if source == experiment.source:
        return False
    try:
        begun = make_experiment_from_source(source)
    except ConfigError:  # an edit has repaired it
        return False
    return experiment.init != begun.init


def _make_edited_init_error(folder: RunFolder, checkpoint: str) -> UsageError:
    """Return the error of an edited `init` in a run that continues from a checkpoint."""
    return UsageError(
        f"{folder}/experiment.yaml: init was edited, but it counts only when a run begins, and this"
        f" one continues from {checkpoint}; restore init, or start another run"
    )


def _find_newest_checkpoint(folder: RunFolder) -> str | None:
    """Return the newest checkpoint, if any; raises UsageError if all are damaged."""
    store = open_checkpoints(folder)
    store.recover()
    # The ranks need these files, so a damaged one ends the resume here.
    store.index.read()
    folder.read_attempts()
    try:
        return store.find_latest(check_hashes=False).name
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


def load_experiment_to_resume(folder: RunFolder, workers: int | None = None) -> CheckedExperiment:
    """Return an experiment with edits of its experiment.yaml, and with `workers` ranks if given;
    raises ConfigError."""
    experiment = apply_edits(folder.read_source(), folder.read_experiment_text())
    if workers is None:
        return experiment
    return make_experiment_from_source(
        experiment.source.with_values(make_rank_count_overrides(workers))
    )

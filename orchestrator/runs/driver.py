"""The driver of a run: begins one, or goes on with it."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.load import check_experiment, experiment_from_source, experiment_with_edits, to_dict, to_yaml
from orchestrator.config.python.objects import main_source_code
from orchestrator.config.sections.experiment import Experiment, check_run_name
from orchestrator.config.sections.workers import rank_count_overrides
from orchestrator.engines.ray_environment import chosen_address
from orchestrator.errors import CheckpointError, UsageError
from orchestrator.loop.model.weight_sources import find_for
from orchestrator.records.lease import Lease
from orchestrator.records.metadata import EngineName
from orchestrator.records.new_run import create_run, refuse_if_taken
from orchestrator.records.process import Process
from orchestrator.records.provenance import collect_provenance
from orchestrator.records.reports import counted_reports
from orchestrator.records.run_driver import make_lease
from orchestrator.records.run_folder import DEFAULT_STORAGE, ENDED, RunFolder, nothing_started, now
from orchestrator.runs.continuation import parent_run, refuse_other_optimizers, refuse_other_ranks
from orchestrator.runs.launch import chosen_engine, drive, refuse_what_cannot_be
from orchestrator.runs.result import Run
from orchestrator.storage import Storage


def run(
    experiment: Experiment,
    storage: str | Path = DEFAULT_STORAGE,
    name: str | None = None,
    *,
    engine: EngineName | None = None,
    local: bool = False,
    address: str | None = None,
) -> Run:
    """Runs an experiment to its end and returns what it made.

    The `engine` is `train`, Ray Train, where nothing is said; `gang`, a process for each rank, without Ray Train, which
    starts sooner; or `in-process`, a single rank in this process, which is what `local` means.

    Raises UsageError where the name is taken or the machine is too small, before anything is started; RunError where
    the run failed. A run that was interrupted is returned with the status `interrupted`.
    """
    experiment = check_experiment(experiment)
    if experiment.sweep is not None:
        raise UsageError("this experiment has a sweep section; use sweep (hookyard sweep)")
    engine = chosen_engine(engine, local)
    address = chosen_address(address, local=engine == "in-process")
    Storage(storage).reach()
    refuse_what_cannot_be(experiment, engine, address)
    if before := experiment.source.continued_from:
        _refuse_other_ranks(parent_run(Storage(storage), before), before.checkpoint, experiment, engine)
    metadata = {
        **collect_provenance(experiment.import_paths),
        "source": experiment.source,
        "tags": experiment.tags,
        "notes": experiment.notes,
        "engine": engine,
        "local": engine == "in-process",
        "seed": experiment.seed,
        "continued_from": experiment.source.continued_from and asdict(experiment.source.continued_from),
        "init": find_for(experiment),
    }
    folder = RunFolder(storage, check_run_name(experiment, name))
    refuse_if_taken(folder)
    with Lease(folder.storage) as lease:
        folder = create_run(
            storage, folder.name, to_yaml(experiment), code=main_source_code(to_dict(experiment)), **metadata
        )
        drive(folder, experiment, engine, address, lease, how_to_go_on=resume_command(folder))
    return Run(folder)


def resume(
    path: str | Path,
    *,
    workers: int | None = None,
    address: str | None = None,
    force_lease: bool = False,
    from_start: bool = False,
) -> Run:
    """Goes on with a run that was interrupted, failed, or lost its driver, from its last whole checkpoint.

    With another number of `workers` where that is given; from then on it is the run's. With `from_start` its
    checkpoints are thrown away, and it begins anew. Raises UsageError where there is nothing to go on with, where it
    has checkpoints and none is whole, or where the run is still under way, or may be on another machine; `force_lease`
    says it is not.
    """
    with nothing_started():
        folder = RunFolder.open(path)
        metadata = folder.metadata()
    if metadata.sweep:
        raise UsageError(f"{folder} is a sweep; go on with it with resume_sweep (hookyard resume)")
    with make_lease(folder, force=force_lease) as lease:
        return go_on(folder, lease, workers=workers, address=address, from_start=from_start)


def go_on(folder: RunFolder, lease: Lease, *, workers: int | None, address: str | None, from_start: bool) -> Run:
    """As `resume`, of a run whose lease is had."""
    experiment, engine, address = _made_ready(folder, workers, address, from_start)
    drive(folder, experiment, engine, address, lease, how_to_go_on=resume_command(folder))
    return Run(folder)


@nothing_started()
def _made_ready(
    folder: RunFolder, workers: int | None, address: str | None, from_start: bool
) -> tuple[Experiment, EngineName, str | None]:
    """Sees that a run can be gone on with, and writes down that it is; gives with what, its engine, and the address of
    a cluster."""
    metadata = folder.metadata()
    if metadata.status in ENDED:
        raise UsageError(f"{folder} has {metadata.status}; there is nothing to resume")
    if metadata.evaluates:
        raise UsageError(
            f"{folder} is an evaluation, which begins anew: hookyard evaluate"
            f" {folder.evaluated_run()}@{metadata.evaluates['checkpoint']}"
        )
    experiment = experiment_to_resume(folder, workers)
    engine = metadata.engine or chosen_engine(None, metadata.local)
    address = chosen_address(address, local=engine == "in-process")
    refuse_what_cannot_be(experiment, engine, address)
    if from_start and (before := experiment.source.continued_from):
        raise UsageError(
            f"{folder} went on from {before}; to begin from there again: hookyard run {before.run}@{before.checkpoint}"
        )
    if checkpoint := _checkpoint_to_go_on_from(folder, from_start):
        refuse_other_optimizers(folder, _store(folder), checkpoint, experiment)
        _refuse_other_ranks(folder, checkpoint, experiment, engine)
    again = {
        "status": "running",
        "error": None,
        "stopped": [],
        "resumed": [*metadata.resumed, now()],
    }
    folder.write_experiment(to_yaml(experiment), experiment.source)
    folder.update(**again, **asdict(Process.this()))
    return experiment, engine, address


def _store(folder: RunFolder) -> CheckpointStore:
    return CheckpointStore(folder.kept_checkpoints(), folder.name)


def _refuse_other_ranks(folder: RunFolder, checkpoint: str, experiment: Experiment, engine: EngineName) -> None:
    workers = experiment.workers
    if engine == "in-process" or workers.min_count == workers.max_count:
        refuse_other_ranks(
            folder, _store(folder), checkpoint, experiment, 1 if engine == "in-process" else workers.max_count
        )


def _checkpoint_to_go_on_from(folder: RunFolder, from_start: bool) -> str | None:
    """The newest checkpoint, or None where there is none. Clears them where that is asked; else raises UsageError where
    there are some, and none to go on from."""
    store = _store(folder)
    if from_start:
        store.clear()
        return None
    store.recover()
    try:
        return store.latest(hashed=False)
    except CheckpointError as error:
        reports = counted_reports(folder.reports(), folder.attempts())
        reached = (
            f"its {len(reports)} reports, up to step {reports[-1].get('step')}" if reports else "what it had trained"
        )
        raise UsageError(
            f"{error}\nNothing was started. {resume_command(folder)} --from-start begins anew; it throws away these"
            f" checkpoints, and {reached}"
        ) from error


def experiment_to_resume(folder: RunFolder, workers: int | None = None) -> Experiment:
    """What a run or a sweep goes on with: what it was begun with, mended in its experiment.yaml or not, and another
    number of workers where that is given; raises ConfigError."""
    experiment = experiment_with_edits(folder.source(), folder.experiment_text())
    if workers is None:
        return experiment
    return experiment_from_source(experiment.source.with_values(rank_count_overrides(workers)))


def resume_command(folder: RunFolder) -> str:
    """What to type to go on with a run."""
    return f"hookyard resume {shlex.quote(str(folder))}"

"""Checks that training can continue from a checkpoint with an experiment. Used in the driver."""

from collections.abc import Mapping
from typing import Any

from hooks.optimizer_name import OptimizerName
from orchestrator.disk.checkpoints.manifest import list_optimizers
from orchestrator.disk.metadata import EngineName
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import ConfigError, UsageError
from orchestrator.experiment.load import make_experiment_from_source
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.units import format_count


def check_same_optimizers(folder: RunFolder, name: str, experiment: Experiment) -> None:
    """Raise UsageError if the optimizers of a checkpoint differ from those of the experiment."""
    store = open_checkpoints(folder)
    optimizers = list_optimizers(store.read_manifest(name))
    stored = {key: entries.get("optimizer", {}).get("type") for key, entries in optimizers.items()}
    needed = {
        key: optimization.optimizer.type for key, optimization in experiment.optimizations.items()
    }
    if None in stored.values() or stored == needed:
        return
    raise UsageError(
        f"{store.get_path(name)} has the state of {_join_kinds(stored)}, not of"
        f" {_join_kinds(needed)}; keep the optimizer, or load only the weights:"
        f" init.from={folder}@{name}"
    )


def _join_kinds(kinds: Mapping[OptimizerName, str | None]) -> str:
    return ", ".join(f"{key} ({kind})" if key else str(kind) for key, kind in kinds.items())


def check_same_initial_weights(folder: RunFolder, name: str, experiment: Experiment) -> None:
    """Raise UsageError if `init` was edited, because training continues from a checkpoint."""
    if has_edited_init(folder, experiment):
        raise make_edited_init_error(folder, open_checkpoints(folder).get_path(name))


def has_edited_init(folder: RunFolder, experiment: Experiment) -> bool:
    """Return whether an experiment has another `init` than the run's source."""
    try:
        begun = make_experiment_from_source(folder.read_source())
    except ConfigError:  # an edit has repaired it
        return False
    return experiment.init != begun.init


def make_edited_init_error(folder: RunFolder, checkpoint: str) -> UsageError:
    """Return the error of an edited `init` in a run that continues from a checkpoint."""
    return UsageError(
        f"{folder}/experiment.yaml: init was edited, but it counts only when a run begins, and this"
        f" one continues from {checkpoint}; restore init, or start another run"
    )


def check_same_ranks(
    folder: RunFolder, name: str, experiment: Experiment, engine: EngineName
) -> None:
    """Raise UsageError if the number of ranks has changed, and a checkpoint has per-rank state."""
    ranks = _get_rank_count(experiment, engine)
    if ranks is None:
        return
    store = open_checkpoints(folder)
    manifest = store.read_manifest(name)
    stored_ranks = manifest["world_size"]
    state = _describe_rank_state(manifest)
    if ranks == stored_ranks or state is None:
        return
    raise UsageError(
        f"{state}, and {store.get_path(name)} is of {format_count(stored_ranks, 'rank')}, not"
        f" {ranks}; use {stored_ranks} (workers.count={stored_ranks}; resume --workers"
        f" {stored_ranks}), or start another run"
    )


def check_same_loader_workers(
    folder: RunFolder, name: str, experiment: Experiment, engine: EngineName
) -> None:
    """Raise UsageError if the number of DataLoader workers has changed, and a checkpoint has their
    places in an iterable dataset."""
    if _get_rank_count(experiment, engine) is None:
        return
    store = open_checkpoints(folder)
    if not _has_iterable_train_data(store.read_manifest(name)):
        return
    orders = [attempt.order for attempt in folder.read_attempts() if attempt.order]
    if not orders:
        return
    stored_workers = orders[-1].values["loader"]["num_workers"]
    if experiment.loader.num_workers == stored_workers:
        return
    raise UsageError(
        "the train data is iterable, and each DataLoader worker has its own place in it, and"
        f" {store.get_path(name)} needs loader.num_workers={stored_workers}"
    )


def _get_rank_count(experiment: Experiment, engine: EngineName) -> int | None:
    """Return the number of ranks; None if the cluster decides it."""
    if engine == "in-process":
        return 1
    workers = experiment.workers
    return workers.max_count if workers.min_count == workers.max_count else None


def _describe_rank_state(manifest: Mapping[str, Any]) -> str | None:
    """Say which state of a checkpoint belongs to single ranks; None if there is none."""
    if _has_iterable_train_data(manifest):
        return "the train data is iterable, and each rank has its own place in it"
    parts = manifest.get("per_rank")
    if parts:
        return f"session.restore() has parts of each rank ({', '.join(parts)})"
    return None


def _has_iterable_train_data(manifest: Mapping[str, Any]) -> bool:
    has_train_data = "train" in manifest.get("phases", ())
    return has_train_data and "train" not in manifest.get("data", ("train",))

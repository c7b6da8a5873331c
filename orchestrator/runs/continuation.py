"""New runs that continue from a checkpoint of another run. Used in the driver."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hooks.metrics.direction import AUTO, find_best_metric, val_metrics
from hooks.metrics.names import list_known
from hooks.optimizer_name import OptimizerName
from orchestrator.disk.attempts import get_meter_modes
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.manifest import list_optimizers
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.metadata import EngineName
from orchestrator.disk.reports import list_reported_names
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import CheckpointError, ConfigError, UsageError
from orchestrator.experiment.load import make_experiment_from_source, with_overrides
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import ParentCheckpoint
from orchestrator.units import format_count


def open_checkpoints(folder: RunFolder, *, is_master: bool = True) -> CheckpointStore:
    explain = partial(_explain_missing_checkpoint, folder)
    return CheckpointStore(find_checkpoint_folder(folder), folder.name, is_master, explain)


def _explain_missing_checkpoint(folder: RunFolder, label: str) -> str:
    """Return why a run has no checkpoint `best` or `last`, to end a message."""
    config = folder.read_experiment()
    hook = (config.get("hooks") or {}).get("checkpoint")
    if not isinstance(hook, dict):
        return ": hooks.checkpoint was off"
    if label != "best":
        return ": none was saved, or all were removed"
    reported = [name for name in list_reported_names(folder.read_reports()) if "/" in name]
    best = hook.get("best") or AUTO
    metric = best if isinstance(best, str) else best[0]
    if metric != AUTO and metric not in reported:
        hint = f" ({list_known(reported, metric)})" if reported else ""
        return f": no report has the metric of hooks.checkpoint.best, '{metric}'{hint}"
    if not val_metrics(reported):
        return ": the run did not validate"
    meters = get_meter_modes(folder.read_attempts())
    if metric != AUTO or find_best_metric(reported, config, meters=meters):
        return ": no checkpoint was saved at a report with a finite value of its metric"
    return ": no validation metric has a known direction. Set hooks.checkpoint: {best: METRIC, mode: max}, or mode: min"


def make_continuation(folder: RunFolder, label: str, overrides: Iterable[str] = ()) -> Experiment:
    """Return the experiment that continues from a run's checkpoint.

    Raises UsageError if the checkpoint is missing or damaged, if nothing is left to train, or if
    the overrides set `init` or another optimizer, and ConfigError if an override is invalid.
    """
    store = open_checkpoints(folder)
    try:
        name = store.resolve(label)
        sha256 = store.verify(name)
        position = store.read_position(name)
    except CheckpointError as error:
        raise UsageError(str(error)) from None
    trial = folder.read_metadata().trial
    run = f"{folder.storage.path.split('/')[-3]}-{trial}" if trial else folder.name
    source = folder.read_source().with_values(
        {
            "name": re.sub(r"[^\w.-]", "-", f"{run}-from-{name}"),
            "init": None,
            **_keep_sweep_metrics(folder),
        }
    )
    source = replace(
        source,
        import_paths=tuple(dict.fromkeys([*source.import_paths, str(Path.cwd())])),
        continued_from=ParentCheckpoint(str(folder), name, sha256, position.epoch, position.step),
    )
    experiment = with_overrides(source, overrides)
    if experiment.init is not None:
        raise UsageError(
            f"init has no effect: the run starts with the weights of {store.get_path(name)}; remove init"
        )
    check_same_optimizers(folder, store, name, experiment)
    unit = "epoch"
    done = position.epoch
    length = experiment.epochs
    if experiment.steps:
        unit = "step"
        done = position.step
        length = experiment.steps
    if length is not None and done >= length:
        raise UsageError(
            f"{store.get_path(name)} has already trained for {format_count(done, unit)}; set"
            f" {unit}s to more than that, such as {unit}s={2 * done}"
        )
    return experiment


def check_same_optimizers(
    folder: RunFolder, store: CheckpointStore, name: str, experiment: Experiment
) -> None:
    """Raise UsageError if the optimizers of a checkpoint differ from those of the experiment."""
    manifest = store.read_manifest(name)
    stored = {
        key: entries.get("optimizer", {}).get("type")
        for key, entries in list_optimizers(manifest).items()
    }
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


def check_same_initial_weights(folder: RunFolder, name: str, experiment: Experiment) -> None:
    """Raise UsageError if `init` was edited, because training continues from a checkpoint."""
    try:
        begun = make_experiment_from_source(folder.read_source())
    except ConfigError:  # an edit has repaired it
        return
    if experiment.init == begun.init:
        return
    raise UsageError(
        f"{folder}/experiment.yaml: init was edited, but it counts only when a run begins, and this"
        f" one continues from {open_checkpoints(folder).get_path(name)}; restore init, or start"
        " another run"
    )


def _join_kinds(kinds: Mapping[OptimizerName, str | None]) -> str:
    return ", ".join(f"{key} ({kind})" if key else str(kind) for key, kind in kinds.items())


def check_same_ranks(
    folder: RunFolder, name: str, experiment: Experiment, engine: EngineName
) -> None:
    """Raise UsageError if a checkpoint has per-rank state, and the number of ranks or
    DataLoader workers has changed."""
    ranks = 1 if engine == "in-process" else experiment.workers.max_count
    if engine != "in-process" and experiment.workers.min_count < ranks:
        return
    store = open_checkpoints(folder)
    manifest = store.read_manifest(name)
    stored_ranks = manifest["world_size"]
    per_rank_state = ", ".join(manifest.get("per_rank", ()))
    phases = manifest.get("phases", ())
    is_iterable = "train" in phases and "train" not in manifest.get("data", ("train",))
    reason = "the train data is iterable, and each {} has its own place in it"
    if ranks != stored_ranks and (is_iterable or per_rank_state):
        what = f"session.restore() has parts of each rank ({per_rank_state})"
        if is_iterable:
            what = reason.format("rank")
        number = f"{format_count(stored_ranks, 'rank')}"
        raise UsageError(
            f"{what}, and {store.get_path(name)} is of {number}, not {ranks}; use {stored_ranks}"
            f" (workers.count={stored_ranks}; resume --workers {stored_ranks}), or start another run"
        )
    workers = experiment.loader.num_workers
    orders = [attempt.order for attempt in folder.read_attempts() if attempt.order]
    before = orders[-1].values["loader"]["num_workers"] if orders else workers
    if is_iterable and before != workers:
        needed = f"{store.get_path(name)} needs loader.num_workers={before}"
        raise UsageError(f"{reason.format('DataLoader worker')}, and {needed}")


def copy_parent_checkpoint(folder: RunFolder, experiment: Experiment) -> None:
    """Copy the parent checkpoint into a new run. Raises CheckpointError if it has changed or is
    damaged."""
    parent = experiment.source.continued_from
    store = open_checkpoints(folder)
    if parent is None or folder.read_attempts() or parent.checkpoint in store.list_names():
        return
    source = CheckpointStore(find_checkpoint_folder(RunFolder(folder.storage.at(parent.run))))
    if source.compute_fingerprint(parent.checkpoint) != parent.sha256:
        raise CheckpointError(
            f"{source.get_path(parent.checkpoint)} has changed since this run was created from it"
        )
    store.copy_from(source, parent.checkpoint)


def _keep_sweep_metrics(folder: RunFolder) -> dict[str, Any]:
    """Return values by which a trial's best checkpoint is that of its sweep's val metrics, unless
    it sets its own."""
    modes = {
        metric: mode
        for metric, mode in folder.read_metadata().modes.items()
        if metric.startswith("val/")
    }
    checkpoint = (folder.read_experiment().get("hooks") or {}).get("checkpoint")
    if not modes or not isinstance(checkpoint, dict) or checkpoint.get("best"):
        return {}
    return {"hooks.checkpoint.best": [*modes], "hooks.checkpoint.mode": [*modes.values()]}

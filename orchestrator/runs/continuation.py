"""A run that goes on from a checkpoint of another one, with all that is in it. Driver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.load import with_overrides
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.text.source import ParentCheckpoint
from orchestrator.errors import CheckpointError, UsageError
from orchestrator.records.run_folder import RunFolder
from orchestrator.storage import Storage
from orchestrator.storage.location import is_url, split_options


def continued(folder: RunFolder, label: str, overrides: Iterable[str] = ()) -> Experiment:
    """A run's experiment with overrides over it, to go on from one of its checkpoints, `best`, `last` or a name, as a
    new run.

    Raises UsageError where there is no such checkpoint, it is damaged, of another optimizer, or nothing is left to
    train; ConfigError for a wrong override.
    """
    store = CheckpointStore(folder.kept_checkpoints(), folder.name)
    try:
        name = store.resolve(label)
        sha256 = store.verify(name)
        position = store.position(name)
    except CheckpointError as error:
        raise UsageError(str(error)) from None
    source = folder.source().with_values({"name": _name(folder, name), "init": None, **_judged_as_before(folder)})
    source = replace(
        source,
        import_paths=tuple(dict.fromkeys([*source.import_paths, str(Path.cwd())])),
        continued_from=ParentCheckpoint(str(folder), name, sha256, position.epoch, position.step),
    )
    experiment = with_overrides(source, overrides)
    if experiment.init is not None:
        raise UsageError(
            f"{store.path(name)} is gone on from with the weights that are in it, and init.from names"
            f" {experiment.init.source}; leave init out"
        )
    refuse_other_optimizers(folder, store, name, experiment)
    done, length, unit = (
        (position.step, experiment.steps, "steps")
        if experiment.steps
        else (position.epoch, experiment.epochs, "epochs")
    )
    if length is not None and done >= length:
        raise UsageError(
            f"{store.path(name)} has {done} of {length} {unit}, so nothing is left to train; say how long in all, such"
            f" as {unit}={2 * done}"
        )
    return experiment


def refuse_other_optimizers(folder: RunFolder, store: CheckpointStore, name: str, experiment: Experiment) -> None:
    """Raises UsageError where a run's checkpoint is of other optimizers than an experiment has, as far as its manifest
    says."""
    manifest = store.manifest(name)
    each = manifest.get("optimizers") or {"": manifest}
    before = {one: said.get("optimizer", {}).get("type") for one, said in each.items()}
    after = {one: named.optimizer.type for one, named in experiment.optimizations.items()}
    if None in before.values() or before == after:
        return
    held, given = (
        ", ".join(f"{one} ({kind})" if one else str(kind) for one, kind in kinds.items()) for kinds in (before, after)
    )
    raise UsageError(
        f"{store.path(name)} holds the state of {held}, with which {given} cannot go on; keep the optimizer, or begin"
        f" another run with the weights alone: init.from={folder}@{name}"
    )


def refuse_other_ranks(
    folder: RunFolder, store: CheckpointStore, name: str, experiment: Experiment, ranks: int
) -> None:
    """Raises UsageError where a run's checkpoint holds what is each rank's own, and there are to be others, or other
    processes of their loaders."""
    manifest = store.manifest(name)
    made_by, own = manifest["world_size"], ", ".join(manifest.get("per_rank", ()))
    is_stream = "train" in manifest.get("phases", ()) and "train" not in manifest.get("data", ("train",))
    if ranks != made_by and (is_stream or own):
        what = (
            "the train data is a stream, of which each rank keeps its own place"
            if is_stream
            else f"session.restore() has parts of each rank ({own})"
        )
        number = f"{made_by} rank{'s' if made_by > 1 else ''}"
        advice = f"go on with {made_by} (workers.count={made_by}; resume --workers {made_by}), or begin another run"
        raise UsageError(f"{what}, and {store.path(name)} is of {number}, not {ranks}; {advice}")
    processes = experiment.loader.num_workers
    orders = [attempt.order for attempt in folder.attempts() if attempt.order]
    before = orders[-1].values["loader"]["num_workers"] if orders else processes
    if is_stream and before != processes:
        what = "the train data is a stream, of which each process of a loader keeps its own place"
        raise UsageError(
            f"{what}, and {store.path(name)} is of {before} processes for each rank, not {processes}; go on with"
            f" loader.num_workers={before}"
        )


def copy_parent_checkpoint(folder: RunFolder, experiment: Experiment) -> None:
    """Copies the checkpoint that a run goes on from into it, where that has not been done. Raises CheckpointError where
    it has changed meanwhile, or is damaged."""
    before = experiment.source.continued_from
    store = CheckpointStore(folder.kept_checkpoints(), folder.name)
    if before is None or folder.attempts() or before.checkpoint in store.names():
        return
    there = CheckpointStore(parent_run(folder.storage, before).kept_checkpoints())
    if there.fingerprint(before.checkpoint) != before.sha256:
        raise CheckpointError(
            f"{there.path(before.checkpoint)} is another checkpoint by now than the one this run was to go on from"
        )
    store.copy_from(there, before.checkpoint)


def parent_run(here: Storage, before: ParentCheckpoint) -> RunFolder:
    """The run that another goes on from, with the keys of this storage where both are on such."""
    return RunFolder(
        here.at(split_options(before.run)[0]) if is_url(before.run) and here.local is None else Storage(before.run)
    )


def _judged_as_before(folder: RunFolder) -> dict[str, Any]:
    """Of a trial, values by which its best checkpoint is told by its sweep's metrics of val, unless its experiment says
    by which."""
    modes = {metric: mode for metric, mode in folder.metadata().modes.items() if metric.startswith("val/")}
    checkpoint = (folder.experiment().get("hooks") or {}).get("checkpoint")
    if not modes or not isinstance(checkpoint, dict) or checkpoint.get("best"):
        return {}
    return {"hooks.checkpoint.best": [*modes], "hooks.checkpoint.mode": [*modes.values()]}


def _name(folder: RunFolder, checkpoint: str) -> str:
    """What a run is called that goes on from a checkpoint, unless somebody says it."""
    trial = folder.metadata().trial
    run = f"{folder.storage.path.split('/')[-3]}-{trial}" if trial else folder.name
    return re.sub(r"[^\w.-]", "-", f"{run}-from-{checkpoint}")

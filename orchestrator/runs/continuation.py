"""A run that goes on from a checkpoint of another one, with all that is in it. Driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.experiment import Experiment
from orchestrator.config.load import to_dict, with_overrides
from orchestrator.config.source import Predecessor
from orchestrator.errors import CheckpointError, UsageError
from orchestrator.records.run_folder import RunFolder
from orchestrator.storage import Storage
from orchestrator.storage.location import is_url, split_options


def continued(folder: RunFolder, label: str, overrides: Iterable[str] = ()) -> Experiment:
    """A run's experiment with overrides over it, to go on from one of its checkpoints, `best`, `last` or a name, as a new run.

    Raises UsageError where there is no such checkpoint, it is damaged, of another optimizer, or nothing is left to train; ConfigError
    for a wrong override.
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
        goes_on_from=Predecessor(str(folder), name, sha256, position.epoch, position.step),
    )
    experiment = with_overrides(source, overrides)
    if experiment.init is not None:
        raise UsageError(f"{store.path(name)} is gone on from with the weights that are in it, and init.from names {experiment.init.source}; leave init out")
    before, after = _optimizers(folder.experiment()), _optimizers(to_dict(experiment))
    if None not in before and after != before:
        held, given = (", ".join(map(str, kinds)) for kinds in (before, after))
        raise UsageError(
            f"{store.path(name)} holds the state of {held}, with which {given} cannot go on; keep the optimizer, or "
            f"begin with the weights alone, in the run's own experiment file: init.from={folder}@{label}"
        )
    done, length, unit = (
        (position.step, experiment.steps, "steps") if experiment.steps else (position.epoch, experiment.epochs, "epochs")
    )
    if length is not None and done >= length:
        raise UsageError(
            f"{store.path(name)} has {done} of {length} {unit}, so nothing is left to train; say how long in all, such as {unit}={2 * done}"
        )
    return experiment


def _optimizers(experiment: Mapping[str, Any]) -> list[str | None]:
    """What trains, by type; of several with their names."""
    several = experiment.get("optimizers") or {}
    return [f"{name} ({one.get('type')})" for name, one in several.items()] or [(experiment.get("optimizer") or {}).get("type")]


def take_up_predecessor(folder: RunFolder, experiment: Experiment) -> None:
    """Copies the checkpoint that a run goes on from into it, where that has not been done. Raises CheckpointError where it has
    changed meanwhile, or is damaged."""
    before = experiment.source.goes_on_from
    store = CheckpointStore(folder.kept_checkpoints(), folder.name)
    if before is None or folder.attempts() or before.checkpoint in store.names():
        return
    there = CheckpointStore(RunFolder(_opened(folder.storage, before.run)).kept_checkpoints())
    if there.fingerprint(before.checkpoint) != before.sha256:
        raise CheckpointError(f"{there.path(before.checkpoint)} is another checkpoint by now than the one this run was to go on from")
    store.copy_from(there, before.checkpoint)


def _opened(here: Storage, run: str) -> Storage:
    """The storage of another run, with the keys of this one's where both are on such."""
    return here.at(split_options(run)[0]) if is_url(run) and here.local is None else Storage(run)


def _judged_as_before(folder: RunFolder) -> dict[str, Any]:
    """Of a trial, values by which its best checkpoint is told by its sweep's metrics of val, unless its experiment says by which."""
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

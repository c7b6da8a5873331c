"""New runs that continue from a checkpoint of another run. Used in the driver."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hooks.position import Position
from orchestrator.disk.checkpoint_folder import find_parent_checkpoints
from orchestrator.disk.checkpoints.reader import CheckpointReader
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import get_sweep
from orchestrator.errors import CheckpointError, UsageError
from orchestrator.experiment.checked_experiment import CheckedExperiment
from orchestrator.experiment.load import with_overrides
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.origins import ParentCheckpoint
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.runs.continued_checkpoint import ContinuedCheckpoint
from orchestrator.units import format_count


def make_continuation(
    folder: RunFolder, label: str, overrides: Iterable[str] = ()
) -> CheckedExperiment:
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
    source = folder.read_source().with_values(
        {"name": _make_name(folder, name), "init": None, **_keep_sweep_metrics(folder)}
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
    ContinuedCheckpoint.read(folder, name).check_optimizers(experiment)
    _check_is_longer(experiment, position, store.get_path(name))
    return experiment


def _make_name(folder: RunFolder, checkpoint: str) -> str:
    """Return the default name of a continuation; a trial's has the name of its sweep."""
    run = folder.name
    trial = folder.read_metadata().trial
    if trial:
        run = f"{get_sweep(folder).name}-{trial}"
    return re.sub(r"[^\w.-]", "-", f"{run}-from-{checkpoint}")


def _keep_sweep_metrics(folder: RunFolder) -> dict[str, Any]:
    """Return values by which a trial's best checkpoint is that of its sweep's val metrics, unless
    it sets its own."""
    modes = {
        metric: mode
        for metric, mode in folder.read_metadata().trial_settings.modes.items()
        if metric.startswith("val/")
    }
    checkpoint = (folder.read_experiment().get("hooks") or {}).get("checkpoint")
    if not modes or not isinstance(checkpoint, dict) or checkpoint.get("best"):
        return {}
    return {"hooks.checkpoint.best": [*modes], "hooks.checkpoint.mode": [*modes.values()]}


def _check_is_longer(experiment: Experiment, position: Position, path: str) -> None:
    """Raise UsageError if the checkpoint at `path` has trained for as long as the experiment."""
    unit = "epoch"
    done = position.epoch
    length = experiment.epochs
    if experiment.steps:
        unit = "step"
        done = position.step
        length = experiment.steps
    if length is not None and done >= length:
        raise UsageError(
            f"{path} has already trained for {format_count(done, unit)}; set"
            f" {unit}s to more than that, such as {unit}s={2 * done}"
        )


def copy_parent_checkpoint(folder: RunFolder, experiment: Experiment) -> None:
    """Copy the parent checkpoint into a new run that has none: its ranks refuse one of an earlier
    run. Raises CheckpointError if the parent checkpoint has changed or is damaged."""
    parent = experiment.source.continued_from
    store = open_checkpoints(folder)
    if parent is None or folder.read_attempts() or store.list_names():
        return
    source = CheckpointReader(find_parent_checkpoints(folder, parent))
    if source.compute_fingerprint(parent.checkpoint) != parent.sha256:
        raise CheckpointError(
            f"{source.get_path(parent.checkpoint)} has changed since this run was created from it"
        )
    store.copy_from(source, parent.checkpoint)

"""A run's model with the weights of a checkpoint, in plain PyTorch. Does not need Ray."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from hooks.import_path import extend_import_path
from hooks.model.buffers import copy_expanded_buffers, restore_buffers
from orchestrator.disk.checkpoints.contents import load_buffers, load_state_dict
from orchestrator.errors import CheckpointError, ConfigError, UsageError
from orchestrator.experiment.make_task import make_task
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.model.frozen_weights import RECORD, add_frozen_weights
from orchestrator.loop.model.initial_weights import describe_mismatches
from orchestrator.randomness import seeded
from orchestrator.runs.checkpoints import open_checkpoints

if TYPE_CHECKING:
    from orchestrator.disk.run_folder import RunFolder


def load_model(folder: RunFolder, label: str) -> nn.Module:
    """Return the model of `Run.load`, made with the run's seed; leaves the caller's random state
    alone."""
    store = open_checkpoints(folder)
    name = store.resolve(label)
    weights = load_state_dict(store, name, store.find_evaluated_weights(name, label))
    model = _make_model(folder, label)

    record = store.read_manifest(name).get(RECORD)
    if record is not None:
        add_frozen_weights({"model": weights}, record, model, name)

    copy_expanded_buffers(model)
    buffers, remade = load_buffers(store, name)
    restore_buffers(model, buffers, remade, persistent=weights)

    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        here = model.state_dict()
        mismatches = "; ".join(describe_mismatches(weights, here, here)) or error
        task = folder.read_experiment()["task"]
        raise CheckpointError(
            f"{store.get_path(name)} does not fit the model that {task} now"
            f" makes{_describe_commit(folder)}: {mismatches}. {_offer_weights(folder, label)}"
        ) from None
    return model.eval()


def _make_model(folder: RunFolder, label: str) -> nn.Module:
    """Make the model as the run's task makes it before training."""
    config = folder.read_experiment()
    # An edit may have removed them.
    seed = config.get("seed", Experiment.model_fields["seed"].default)
    arguments = config.get("task_args", {})
    extend_import_path([*folder.read_source().import_paths, Path.cwd()])
    try:
        with seeded(seed):
            task, _ = make_task(config["task"], arguments)
    except ConfigError as error:
        raise make_import_error(folder, "loaded as a model", error) from None

    try:
        with seeded(seed):
            return task.model().cpu()
    except NotImplementedError as error:
        raise UsageError(f"{error}. {_offer_weights(folder, label)}") from None


def _offer_weights(folder: RunFolder, label: str) -> str:
    return f"The weights alone: open_run({str(folder)!r}).weights({label!r})"


def make_import_error(folder: RunFolder, what: str, error: ConfigError) -> UsageError:
    """Make the error for a task whose code is missing or has changed."""
    place = ", ".join(folder.read_source().import_paths) or "the import path"
    return UsageError(
        f"{folder} cannot be {what}: {error}\nIts code was in {place}{_describe_commit(folder)};"
        f" call this there. The weights need no code: open_run({str(folder)!r}).weights()"
    )


def _describe_commit(folder: RunFolder) -> str:
    """Return the commit of the run's code, to end a clause; empty if it is unknown."""
    commit = folder.read_metadata().provenance.describe_commit()
    return f" (the run used commit {commit})" if commit else ""

"""A run's model with the weights of one of its checkpoints, in plain PyTorch. Needs no Ray."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from hooks.import_path import extend_import_path
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.components import make_task
from orchestrator.errors import CheckpointError, ConfigError, UsageError
from orchestrator.randomness import seeded

if TYPE_CHECKING:
    from orchestrator.records.run_folder import RunFolder
    from orchestrator.task import Task


def load_model(folder: RunFolder, label: str) -> nn.Module:
    """The task's model on the CPU, in evaluation mode, with the evaluated weights, of a checkpoint by name or
    label.

    Random numbers are drawn as the run drew them, and those of the caller stay as they are. Raises CheckpointError
    where there is no such checkpoint, it is damaged, or the model is another one by now; UsageError where the task
    cannot be imported, or has no model.
    """
    store = CheckpointStore(folder.kept_checkpoints(), folder.name)
    weights = store.weights(label)
    config = folder.experiment()
    with seeded(config["seed"]):
        task = _task(folder, config["task"], config["task_args"])
    try:
        with seeded(config["seed"]):
            model = task.model().cpu()
    except NotImplementedError as error:
        raise UsageError(f"{error}. The weights alone: open_run({str(folder)!r}).weights({label!r})") from None
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{store.path(store.resolve(label))} does not fit the model that {config['task']} makes by"
            f" now{_commit(folder)}: {error}. The weights alone: open_run({str(folder)!r}).weights({label!r})"
        ) from None
    unsaved = {name: buffer for name, buffer in model.named_buffers() if name not in weights}
    if unsaved:
        kept = store.buffers(label)
        for name, buffer in unsaved.items():
            buffer.copy_(kept[name])
    return model.eval()


def _task(folder: RunFolder, name: str, arguments: dict[str, object]) -> Task:
    paths = folder.source().import_paths
    extend_import_path([*paths, Path.cwd()])
    try:
        return make_task(name, arguments)[0]
    except ConfigError as error:
        raise not_found(folder, "loaded as a model", error) from None


def not_found(folder: RunFolder, what: str, error: ConfigError) -> UsageError:
    """What to say where the code of a run's task is not what it was, or not here."""
    paths = folder.source().import_paths
    return UsageError(
        f"{folder} cannot be {what}: {error}\nIts code was in {', '.join(paths) or 'the import path'}{_commit(folder)};"
        " call from where it is now, or put that on PYTHONPATH. The weights need no code:"
        f" open_run({str(folder)!r}).weights()"
    )


def _commit(folder: RunFolder) -> str:
    """Which code the run was made with, where that is known."""
    git = folder.metadata().git
    return (
        f" (the run was made at commit {git['commit'][:12]}{' and changes to it' if git['dirty'] else ''})"
        if git
        else ""
    )

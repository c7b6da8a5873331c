"""Initial weights: finding them, in the driver and on each rank, and loading those that match the
model."""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hooks.parameter_names import listed
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.manifest import MANIFEST
from orchestrator.disk.checkpoints.reader import shared_files
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.run_folder import RunFolder, errors_before_start
from orchestrator.disk.sweep_folder import trial_folder
from orchestrator.errors import CheckpointError, ConfigError
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.initial_weights import Init
from orchestrator.experiment.yaml.source import InitialWeights
from orchestrator.loop.model.strategy import sharded_model
from orchestrator.loop.world import World
from orchestrator.storage import Storage
from orchestrator.storage.remote import is_url

_STATE_DICTS = {
    "model": ("model", "state_dict", "model_state_dict"),
    "ema": ("ema", "model_ema", "ema_state_dict", "state_dict_ema"),
}
"""Names of state dicts in files, by their name in `init.weights`."""


def find(init: Init, folders: Iterable[str | Path]) -> InitialWeights:
    """Find the weights that `init` names, in `folders` and the working directory.

    Raises ConfigError if they do not exist, or if no name in them matches `init`.
    """
    try:
        with errors_before_start():
            origin = _find(init, folders)
            init.renamed(_list_names(origin))
    except CheckpointError as error:
        raise ConfigError.at("init.from", str(error)) from None
    return origin


def describe_initial_weights(experiment: Experiment) -> dict[str, Any] | None:
    """Describe the experiment's initial weights for `run.json`; None if it has none. Raises
    ConfigError."""
    return asdict(find(experiment.init, experiment.import_paths)) if experiment.init else None


def find_again(origin: InitialWeights) -> InitialWeights:
    """Return `origin` again; raises CheckpointError if the weights have changed since they were
    found."""
    if origin.checkpoint:
        now = _open_store(origin.path).compute_fingerprint(origin.checkpoint)
    else:
        now = _hash_file(origin.path)
    if now != origin.sha256:
        raise CheckpointError(
            f"{origin} has changed since this run began: its sha256 is {now[:12]}...,"
            f" expected {origin.sha256[:12]}..."
        )
    return origin


def read(origin: InitialWeights) -> dict[str, Any]:
    """Return full tensors by name, on the CPU. Those of a checkpoint are verified; raises
    CheckpointError."""
    if origin.checkpoint:
        return _open_store(origin.path).load_weights(origin.checkpoint, origin.weights)
    return _read_weights(origin.path, origin.weights)


def _find(init: Init, folders: Iterable[str | Path]) -> InitialWeights:
    path, at, label = init.source.rpartition("@")
    locations = [(init.source, "best"), *([(path, label)] if at and "/" not in label else [])]
    roots = [None] if is_url(init.source) else [*folders, Path.cwd()]
    for location, checkpoint in locations:
        for root in roots:
            full = location if root is None else str(Path(root, Path(location).expanduser()))
            storage = Storage(full)
            if storage.exists("run.json"):
                return _run_weights(init, full, checkpoint)
            if checkpoint == label and at:
                continue
            if storage.parent.state(storage.name):
                return InitialWeights(full, None, init.weights, _hash_file(full))
            if storage.exists(".metadata"):
                raise CheckpointError(
                    f"{storage} is a folder of torch.distributed.checkpoint; convert it first: python -m"
                    f" torch.distributed.checkpoint.format_utils dcp_to_torch {storage} FILE (runs code of"
                    " the file, so trust it)"
                )
            if storage.exists(MANIFEST):
                raise CheckpointError(
                    f"{storage} is a checkpoint; write {storage.parent.parent}@{storage.name}"
                )
    raise CheckpointError(
        f"no such run or file: {init.source}; expected a file, a run's folder, or its checkpoint"
        " such as runs/NAME@best"
    )


def _run_weights(init: Init, path: str, label: str) -> InitialWeights:
    metadata = RunFolder(path).read_metadata()
    if metadata.sweep:
        trial = (metadata.best or {}).get("trial")
        if trial is None:
            raise CheckpointError(
                f"{path} is a sweep without a best trial; name one: {path}/trials/trial-0000"
            )
        path = str(trial_folder(path, int(str(trial).rpartition("-")[2])))
    store = _open_store(path)
    name = store.resolve(label)
    weights = init.weights or store.find_evaluated_weights(label)
    if init.weights and init.weights != "model":
        weights = f"{init.weights}/model"
    entries = [
        file.removesuffix(".pt") for file in shared_files(store.read_manifest(name)["files"])
    ]
    allowed = [entry for entry in entries if entry not in ("optimizer", "hooks")]
    if weights.partition("/")[0] not in allowed:
        message = (
            f"got {init.weights}, which {store.get_path(name)} does not hold;"
            f" it holds {', '.join(allowed)}"
        )
        raise ConfigError.at("init.weights", message)
    return InitialWeights(path, name, weights, store.verify(name))


def _open_store(path: str) -> CheckpointStore:
    folder = RunFolder(path)
    return CheckpointStore(find_checkpoint_folder(folder), folder.name)


def _list_names(origin: InitialWeights) -> list[str]:
    if origin.checkpoint:
        return _open_store(origin.path).list_keys(origin.checkpoint, str(origin.weights))
    return list(_read_weights(origin.path, origin.weights))


def _hash_file(path: str) -> str:
    storage = Storage(path)
    digest = hashlib.sha256()
    for piece in storage.parent.read_chunks(storage.name):
        digest.update(piece)
    return digest.hexdigest()


def _read_weights(path: str, weights: str | None) -> dict[str, Any]:
    storage = Storage(path)
    if path.endswith(".safetensors"):
        return _choose_state_dict(_read_safetensors(storage), weights, path)
    with storage.parent.open_copy(storage.name) as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a file of a different format may cause any error
            text = str(error).partition("WeightsUnpickler error: ")[2]
            reason = " ".join(
                text.partition(". Please")[0].partition("Check the documentation")[0].split()
            )
            raise CheckpointError(
                f"{path} cannot be read; expected tensors and plain data, saved by torch.save"
                f" ({reason or type(error).__name__})"
            ) from None
    return _choose_state_dict(content, weights, path)


def _read_safetensors(storage: Storage) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load
    except ImportError:
        raise CheckpointError(
            f"{storage} needs the package safetensors: pip install 'hookyard[safetensors]'"
        ) from None
    try:
        tensors: dict[str, Tensor] = load(storage.parent.read(storage.name))
    except SafetensorError as error:
        raise CheckpointError(f"{storage} cannot be read: {error}") from None
    return tensors


def _choose_state_dict(content: Any, weights: str | None, path: str) -> dict[str, Any]:
    """Return the state dict of a file: the entry that `weights` names, or the whole content."""
    name = weights or "model"
    if isinstance(content, Mapping):
        for key in (name, *_STATE_DICTS.get(name, ())):
            if isinstance(content.get(key), Mapping):
                return _tensors_in(content[key])
        if name == "model" and _tensors_in(content):
            return _tensors_in(content)
    entries = type(content).__name__
    if isinstance(content, Mapping):
        entries = ", ".join(map(str, list(content)[:10]))
    raise ConfigError.at(
        "init.weights", f"got {name}, but {path} has no such state dict; it holds {entries}"
    )


def load_initial_weights(
    module: nn.Module, experiment: Experiment, world: World, origin: InitialWeights | None
) -> list[str]:
    """Load the experiment's initial weights that match into the module, which may be sharded;
    return lines for the log.

    Raises ConfigError if a pattern matches no name, if no tensor matches, or with `strict` if some
    tensors do not.
    """
    init = experiment.init
    if init is None:
        return []
    origin = world.broadcast(
        lambda: find_again(origin) if origin else find(init, experiment.import_paths)
    )
    assert origin is not None
    state = module.state_dict()
    matching, mismatches = _match(init, _tensors_in(read(origin)), _tensors_in(state))
    if not matching or (init.strict and mismatches):
        path = "init.strict" if matching else "init.from"
        problem = "does not match the whole model" if matching else "matches no tensor of the model"
        raise ConfigError.at(
            path,
            f"{origin} {problem}: {'; '.join(mismatches)}",
            suggestion="use init.rename to map the names of the source's tensors to the model's",
        )
    module.load_state_dict(sharded_model(matching, module), strict=False)
    return [
        f"initialized from {origin}: loaded {len(matching)} of the model's {len(state)} tensors",
        *(f"  {line}" for line in mismatches),
    ]


def read_matching(
    init: Init, origin: InitialWeights, model: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of `origin` that fit a model, by the model's names."""
    return _match(init, _tensors_in(read(origin)), _tensors_in(model))[0]


def _match(
    init: Init, source: Mapping[str, Tensor], model: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the source's tensors that fit, by the model's names, and lines about tensors that do
    not fit."""
    source_names = init.renamed([*source])
    init.check_excluded(dict.fromkeys([*model, *source, *source_names]))
    selected = init.select(model)
    if not selected:
        excluded = ", ".join(init.excluded)
        raise ConfigError.at(
            "init.except", f"excludes everything that init.only selects, got {excluded}"
        )
    renamed = {name: source[source_name] for name, source_name in source_names.items()}
    tensors = {name: renamed[name] for name in selected if name in renamed}
    matching = {
        name: tensor for name, tensor in tensors.items() if tensor.shape == model[name].shape
    }
    return matching, describe_mismatches(renamed, model, selected)


def describe_mismatches(
    source: Mapping[str, Any], model: Mapping[str, Any], names: Collection[str]
) -> list[str]:
    """Return lines about a source's tensors that do not fit a model; `names` are the model's
    tensors to load."""
    shapes = {name: (_shape(source[name]), _shape(model[name])) for name in names if name in source}
    different = [f"{name} ({old}, here {new})" for name, (old, new) in shapes.items() if old != new]
    mismatches = (
        ("missing", [name for name in names if name not in source]),
        ("unused", [name for name in source if name not in model]),
        ("with a different shape", different),
    )
    return [f"{len(names)} {kind}: {listed(names)}" for kind, names in mismatches if names]


def _tensors_in(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _shape(value: Any) -> str:
    return "x".join(map(str, getattr(value, "shape", ()))) or "a number"

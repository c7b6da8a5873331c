"""Weight sources: finding and reading initial weights. In the driver, and on each rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orchestrator.checkpoint.manifest import MANIFEST
from orchestrator.checkpoint.store import CheckpointStore, shared_files
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.sections.initial_weights import Init
from orchestrator.config.text.source import InitialWeights
from orchestrator.errors import CheckpointError, ConfigError, Problem
from orchestrator.records.run_folder import RunFolder, errors_before_start
from orchestrator.records.sweep_folder import trial_folder
from orchestrator.storage import Storage
from orchestrator.storage.location import is_url

_STATE_DICTS = {
    "model": ("model", "state_dict", "model_state_dict"),
    "ema": ("ema", "model_ema", "ema_state_dict", "state_dict_ema"),
}
"""Names of state dicts in files, by their name in `init.weights`."""


def find(init: Init, folders: Iterable[str | Path]) -> InitialWeights:
    """Find the weights that `init` names, in these folders and the working directory.

    Raises ConfigError if they do not exist, or have none of the names in `init`.
    """
    try:
        with errors_before_start():
            origin = _find(init, folders)
            init.renamed(_names(origin))
    except CheckpointError as error:
        raise ConfigError([Problem("init.from", str(error))]) from None
    return origin


def find_for(experiment: Experiment) -> dict[str, Any] | None:
    """Return the experiment's initial weights for `run.json`, or None; raises ConfigError."""
    return asdict(find(experiment.init, experiment.import_paths)) if experiment.init else None


def find_again(origin: InitialWeights) -> InitialWeights:
    """Return the same weights; raises CheckpointError if they have changed since they were found."""
    now = _store(origin.path).fingerprint(str(origin.checkpoint)) if origin.checkpoint else _sha256(origin.path)
    if now != origin.sha256:
        raise CheckpointError(
            f"{origin} is not what it was when this run began (sha256 {now[:12]}, and was {origin.sha256[:12]})"
        )
    return origin


def read(origin: InitialWeights) -> dict[str, Any]:
    """Return whole tensors by name, on the CPU. A run's are verified by their hashes; raises CheckpointError."""
    if origin.checkpoint:
        return _store(origin.path).weights(origin.checkpoint, origin.weights)
    return _read_weights(origin.path, origin.weights)


# Where it is


def _find(init: Init, folders: Iterable[str | Path]) -> InitialWeights:
    path, at, label = init.source.rpartition("@")
    places = [(init.source, "best"), *([(path, label)] if at and "/" not in label else [])]
    roots = [None] if is_url(init.source) else [*folders, Path.cwd()]
    for place, wanted in places:
        for root in roots:
            lies = place if root is None else str(Path(root, Path(place).expanduser()))
            there = Storage(lies)
            if there.exists("run.json"):
                return _run_weights(init, lies, wanted)
            if wanted == label and at:
                continue
            if there.exists(".metadata"):
                raise CheckpointError(
                    f"{there} is a folder of torch.distributed.checkpoint, which is a pickle that may run code;"
                    " if you trust it, make a file of it: python -m torch.distributed.checkpoint.format_utils"
                    f" dcp_to_torch {there} FILE"
                )
            if there.parent.state(there.name):
                return InitialWeights(lies, None, init.weights, _sha256(lies))
            if there.exists(MANIFEST):
                raise CheckpointError(
                    f"{there} is a checkpoint; name its run and it: {there.parent.parent}@{there.name}"
                )
    raise CheckpointError(
        f"no run, file or checkpoint {init.source}; a run is looked for by its folder, runs/NAME or runs/NAME@best"
    )


def _run_weights(init: Init, path: str, label: str) -> InitialWeights:
    metadata = RunFolder(path).metadata()
    if metadata.sweep:
        trial = (metadata.best or {}).get("trial")
        if trial is None:
            raise CheckpointError(f"{path} is a sweep without a best trial; name one: {path}/trials/trial-0000")
        path = str(trial_folder(path, int(str(trial).rpartition("-")[2])))
    store = _store(path)
    name = store.resolve(label)
    weights = init.weights and (init.weights if init.weights == "model" else f"{init.weights}/model")
    weights = weights or store.find_evaluated_weights(label)
    held = [
        file.removesuffix(".pt") for file in shared_files(store.files(name)) if file not in ("optimizer.pt", "hooks.pt")
    ]
    if weights.partition("/")[0] not in held:
        raise ConfigError(
            [
                Problem(
                    "init.weights",
                    f"is {init.weights}, and {store.path(name)} has no such weights; it holds {', '.join(held)}",
                )
            ]
        )
    return InitialWeights(path, name, weights, store.verify(name))


def _store(path: str) -> CheckpointStore:
    folder = RunFolder(path)
    return CheckpointStore(folder.checkpoint_storage(), folder.name)


def _names(origin: InitialWeights) -> list[str]:
    if origin.checkpoint:
        return _store(origin.path).names_of(origin.checkpoint, str(origin.weights))
    return list(_read_weights(origin.path, origin.weights))


def _sha256(path: str) -> str:
    there = Storage(path)
    digest = hashlib.sha256()
    for piece in there.parent.pieces(there.name):
        digest.update(piece)
    return digest.hexdigest()


# Files


def _read_weights(path: str, weights: str | None) -> dict[str, Any]:
    there = Storage(path)
    if path.endswith(".safetensors"):
        return _chosen(_read_safetensors(there), weights, path)
    with there.parent.fetched(there.name) as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # what no torch.save has written may end in any
            why = next(
                (line.partition(". Please")[0] for line in str(error).splitlines() if "Unsupported" in line),
                type(error).__name__,
            )
            raise CheckpointError(
                f"{path} is no file of torch.save, or holds more than tensors and plain data, which is not read:"
                f" {why.strip()}"
            ) from None
    return _chosen(content, weights, path)


def _read_safetensors(there: Storage) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load
    except ImportError:
        raise CheckpointError(f"{there} needs the package safetensors: pip install 'hookyard[safetensors]'") from None
    try:
        tensors: dict[str, Tensor] = load(there.parent.read(there.name))
    except SafetensorError as error:
        raise CheckpointError(f"{there} cannot be read: {error}") from None
    return tensors


def _chosen(content: Any, weights: str | None, path: str) -> dict[str, Any]:
    """Return the state dict of a file: the whole content, or one entry."""
    if isinstance(content, Mapping):
        whole = bool(content) and all(isinstance(value, Tensor) for value in content.values())
        if whole and weights in (None, "model"):
            return dict(content)
        asked = weights or "model"
        for name in (asked, *_STATE_DICTS.get(asked, ())):
            if isinstance(content.get(name), Mapping):
                return {key: value for key, value in content[name].items() if isinstance(value, Tensor)}
        if not whole and weights is None and any(isinstance(value, Tensor) for value in content.values()):
            return {key: value for key, value in content.items() if isinstance(value, Tensor)}
    held = ", ".join(map(str, list(content)[:10])) if isinstance(content, Mapping) else type(content).__name__
    raise ConfigError(
        [Problem("init.weights", f"names no state dict in {path}, got {weights or 'nothing'}; it holds {held}")]
    )

"""Initial weights of a model: finding them in a run or a file, and reading them. Used in the driver
and on each rank."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.disk.best import BestTrial
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.contents import list_shared_parts, load_part, load_weights
from orchestrator.disk.checkpoints.manifest import MANIFEST
from orchestrator.disk.checkpoints.reader import CheckpointReader
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_folder
from orchestrator.disk.weight_files import read_weight_file
from orchestrator.errors import CheckpointError, ConfigError, errors_before_start
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.initial_weights import Init
from orchestrator.experiment.yaml.origins import InitialWeights
from orchestrator.storage import Storage
from orchestrator.storage.location import is_url


def find_weights(init: Init, folders: Iterable[str | Path]) -> InitialWeights:
    """Find the weights that `init` names, in `folders` and the working directory.

    Raises ConfigError if they do not exist, or if no name in them matches `init`, and StorageError
    if they cannot be read.
    """
    try:
        origin = _search(init, [*folders])
        init.map_names(_list_names(origin))  # raises ConfigError
    except CheckpointError as error:
        raise ConfigError.at("init.from", str(error)) from None
    return origin


def find_initial_weights(experiment: Experiment) -> InitialWeights | None:
    """Find the experiment's initial weights; None if it has none. Used in the driver. Raises
    ConfigError, and UsageError if the weights cannot be read."""
    if experiment.init is None:
        return None
    with errors_before_start():
        return find_weights(experiment.init, experiment.import_paths)


def check_unchanged(origin: InitialWeights) -> None:
    """Raise CheckpointError if the weights have changed since they were found."""
    if origin.checkpoint:
        now = _open_checkpoints(origin.path).compute_fingerprint(origin.checkpoint)
    else:
        now = _hash_file(origin.path)
    if now != origin.sha256:
        raise CheckpointError(
            f"{origin} has changed since this run began: its sha256 is {now[:12]}...,"
            f" expected {origin.sha256[:12]}..."
        )


def read_weights(origin: InitialWeights) -> dict[str, Any]:
    """Return full tensors by name, on the CPU. Those of a checkpoint are verified; raises
    CheckpointError."""
    if origin.checkpoint:
        return load_weights(_open_checkpoints(origin.path), origin.checkpoint, origin.weights)
    return read_weight_file(origin.path, origin.weights)


# The search


class _Candidate(NamedTuple):
    """A place that the text of `init.from` may mean."""

    path: str
    label: str | None = None
    """Checkpoint of a run at the path; None if the path may also be a file."""


def _search(init: Init, folders: Sequence[str | Path]) -> InitialWeights:
    for candidate in _list_candidates(init.source):
        for location in _list_locations(candidate.path, folders):
            found = _look(init, location, candidate.label)
            if found:
                return found
    raise CheckpointError(
        f"no such run or file: {init.source}; expected a file, a run's folder, or its checkpoint"
        " such as runs/NAME@best"
    )


def _list_candidates(source: str) -> Iterator[_Candidate]:
    yield _Candidate(source)
    path, at, label = source.rpartition("@")
    if at and "/" not in label:
        yield _Candidate(path, label)


def _list_locations(path: str, folders: Sequence[str | Path]) -> list[str]:
    if is_url(path):
        return [path]
    return [str(Path(folder, Path(path).expanduser())) for folder in (*folders, Path.cwd())]


def _look(init: Init, location: str, label: str | None) -> InitialWeights | None:
    """Return the weights at a location, None if there is nothing; raises CheckpointError for other
    folders."""
    storage = Storage(location)
    if storage.exists("run.json"):
        return _find_weights_of_run(init, location, label or "best")
    if label is not None:
        return None
    if storage.parent.state(storage.name):
        return InitialWeights(location, None, init.weights, _hash_file(location))
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
    return None


def _find_weights_of_run(init: Init, path: str, label: str) -> InitialWeights:
    metadata = RunFolder(path).read_metadata()
    if metadata.sweep:
        path = _find_best_trial(path, metadata)
    reader = _open_checkpoints(path)
    name = reader.resolve(label)
    weights = init.weights or reader.find_evaluated_weights(name, label)
    _check_is_stored(init, reader, name, weights.partition("/")[0])
    fingerprint = reader.verify(name)
    if init.weights:
        weights = _find_state_dict(reader, name, init.weights)
    return InitialWeights(path, name, weights, fingerprint)


def _check_is_stored(init: Init, reader: CheckpointReader, name: str, part: str) -> None:
    parts = list_shared_parts(reader.read_manifest(name)["files"])
    allowed = [other for other in parts if other not in ("optimizer", "hooks")]
    if part not in allowed:
        given = f"got {part}" if init.weights else f"is {part} by default"
        message = f"{given}, which {reader.get_path(name)} does not hold; it holds"
        raise ConfigError.at("init.weights", f"{message} {', '.join(allowed)}")


def _find_state_dict(reader: CheckpointReader, name: str, part: str) -> str:
    """Return the part of a checkpoint that is a state dict: the `model` that a hook such as `ema`
    saves in its file, or all of the file, as a custom loop saves a part. Raises ConfigError."""
    content = load_part(reader, name, part)
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise ConfigError.at("init.weights", f"must be a state dict, got {part}, which is a {kind}")
    return f"{part}/model" if isinstance(content.get("model"), Mapping) else part


def _find_best_trial(sweep: str, metadata: RunMetadata) -> str:
    best = metadata.best
    if not isinstance(best, BestTrial):
        raise CheckpointError(
            f"{sweep} is a sweep without a best trial; name one: {sweep}/trials/trial-0000"
        )
    return str(trial_folder(sweep, int(best.trial.rpartition("-")[2])))


# Files


def _open_checkpoints(path: str) -> CheckpointReader:
    return CheckpointReader(find_checkpoint_folder(RunFolder(path)))


def _list_names(origin: InitialWeights) -> list[str]:
    if origin.checkpoint:
        reader = _open_checkpoints(origin.path)
        return list(load_part(reader, origin.checkpoint, str(origin.weights)))
    return list(read_weight_file(origin.path, origin.weights))


def _hash_file(path: str) -> str:
    storage = Storage(path)
    digest = hashlib.sha256()
    for piece in storage.parent.read_chunks(storage.name):
        digest.update(piece)
    return digest.hexdigest()

"""Weight averages for any std, computed after training from the snapshots of `ema`. Needs neither
Ray nor the task."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hooks.model.power_average import LARGEST_STD, find_combination
from orchestrator.disk.checkpoints.contents import load_weights
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import CheckpointError, StorageError, UsageError
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.storage import Storage
from orchestrator.units import format_count

AVERAGES = "averages"
"""Default folder in a run's folder."""
MAX_ERROR = 0.05
"""Largest allowed error of an average's profile, relative to its norm."""


@dataclass(frozen=True)
class Term:
    """A term of an average: the average that a checkpoint stores, times a factor."""

    checkpoint: str
    step: int
    """Step of its last update."""
    std: float
    factor: float = 0.0


@dataclass(frozen=True)
class Average:
    """Weights of an average, and its terms."""

    weights: dict[str, Tensor]
    """A state dict. Entries that are not averaged, such as buffers, come from the checkpoint."""
    std: float
    checkpoint: str
    step: int
    """Last step of the average."""
    error: float
    """Norm of the difference between its profile and that of `std`, relative to the latter."""
    terms: Sequence[Term]

    def save(self, path: str | Path | Storage) -> None:
        """Write a `.safetensors` file, or one of torch.save with the weights under `model`; raises
        UsageError."""
        file = path if isinstance(path, Storage) else Storage(path)
        if file.name.endswith(".safetensors"):
            content = _to_safetensors(self.weights)
        else:
            buffer = BytesIO()
            torch.save({"model": self.weights, "average": self.summary()}, buffer)
            content = buffer.getvalue()
        try:
            file.parent.write(file.name, content)
        except (OSError, StorageError) as error:
            raise UsageError(f"cannot write {file}: {error}") from None

    def summary(self) -> dict[str, Any]:
        """Return all fields but the weights, as plain data."""
        return {
            "std": self.std,
            "checkpoint": self.checkpoint,
            "step": self.step,
            "error": self.error,
            "terms": [asdict(term) for term in self.terms],
        }


def _to_safetensors(weights: Mapping[str, Tensor]) -> bytes:
    """Return the content of a `.safetensors` file; raises UsageError if the package is missing."""
    try:
        from safetensors.torch import save
    except ImportError:
        raise UsageError(
            "safetensors is not installed: pip install 'hookyard[safetensors]'"
        ) from None
    # safetensors refuses tensors that share memory.
    content: bytes = save({name: value.clone().contiguous() for name, value in weights.items()})
    return content


def make_average(
    folder: RunFolder, std: float, at: int | None = None, hook: str | None = None
) -> Average:
    """Return the average of `Run.average`; raises UsageError."""
    if not 0 < std <= LARGEST_STD:
        raise UsageError(
            f"the std must be greater than 0 and at most {LARGEST_STD} (nearly the plain mean), got {std:g}"
        )
    store = open_checkpoints(folder)
    hook = _choose_hook(folder, hook)
    try:
        snapshots = _find_snapshots(store, hook)
        name = _choose_checkpoint(folder, store, snapshots, at)
        step = snapshots[name][0].step
        stored: list[Term] = []
        for terms_there in snapshots.values():
            stored += [term for term in terms_there if term.step <= step]

        profiles = [(term.step, term.std) for term in stored]
        factors, error = find_combination(profiles, (step, std))
        if error > MAX_ERROR:
            raise UsageError(_format_error(folder, std, error, stored, step))
        terms = [replace(term, factor=factor) for term, factor in zip(stored, factors, strict=True)]
        return Average(_sum(store, hook, terms), std, name, step, error, terms)
    except CheckpointError as failure:
        raise UsageError(str(failure)) from None


def _choose_hook(folder: RunFolder, hook: str | None) -> str:
    hooks: Mapping[str, Any] = folder.read_experiment().get("hooks") or {}
    names = [
        name
        for name, entry in hooks.items()
        if isinstance(entry, dict) and entry.get("average") == "power"
    ]
    if not names:
        raise UsageError(
            f"{folder} has no snapshots; train with hooks: {{ema: {{average: power, std: [0.05, 0.10]}}}}"
        )
    if hook is None and len(names) == 1:
        return names[0]
    if hook not in names:
        raise UsageError(
            f"the hook must be one of {', '.join(names)}, which keep snapshots in {folder}, got {hook}"
        )
    return hook


def _find_snapshots(store: CheckpointStore, hook: str) -> dict[str, list[Term]]:
    """Return the averages in each checkpoint, oldest first. Of several at the same step, the latest
    is used."""
    by_step: dict[int, tuple[str, list[Term]]] = {}
    for name in store.list_names():
        if f"{hook}.pt" not in store.read_manifest(name)["files"]:
            continue
        state = store.load(name, "hooks.pt").get(hook)
        if state and state["updates"]:
            # Optimizers may take turns.
            by_optimizer = state["updates"]["parameters"]
            step = max(updates["last_step"] for updates in by_optimizer.values())
            by_step[step] = name, [Term(name, step, std) for std in state["stds"]]
    return dict(by_step.values())


def _choose_checkpoint(
    folder: RunFolder, store: CheckpointStore, snapshots: Mapping[str, Any], at: int | None
) -> str:
    steps = {store.read_position(name).step: name for name in snapshots}
    if not steps:
        raise UsageError(f"{folder} has no snapshot yet: none of its checkpoints has an average")
    if at is not None and at not in steps:
        nearest = sorted(sorted(steps, key=lambda step: abs(step - at))[:6])
        suffix = " and others" if len(steps) > 6 else ""
        raise UsageError(
            f"{folder} has no snapshot at step {at}; there are {', '.join(map(str, nearest))}{suffix}"
        )
    return steps[max(steps) if at is None else at]


def _format_error(
    folder: RunFolder, std: float, error: float, stored: Sequence[Term], step: int
) -> str:
    known_stds = sorted({term.std for term in stored})
    stds = ", ".join(f"{value:g}" for value in known_stds)
    count = len({term.checkpoint for term in stored})
    return (
        f"the std {std:g} cannot be approximated with {format_count(count, 'snapshot')} of {folder} up to step {step}:"
        f" the error of its profile is {error:.2g} of its norm, and at most {MAX_ERROR:g} is allowed. Use a std"
        f" near those of the snapshots ({stds}), or keep more snapshots"
    )


def _sum(store: CheckpointStore, hook: str, terms: Sequence[Term]) -> dict[str, Tensor]:
    """Sum the terms in float64; return the sum as a state dict like that of the last checkpoint."""
    total: dict[str, Tensor] = {}
    snapshot: Mapping[str, Any] = {}
    for checkpoint in dict.fromkeys(term.checkpoint for term in terms):
        snapshot = load_weights(store, checkpoint, hook)
        of_snapshot = [term for term in terms if term.checkpoint == checkpoint]
        averages = _read_averages(snapshot, [term.std for term in of_snapshot])
        for term in of_snapshot:
            _add(total, term.factor, averages[term.std], {*snapshot["averaged"].values()})
    return _make_state_dict(snapshot, total)


def _read_averages(
    snapshot: Mapping[str, Any], stds: Sequence[float]
) -> dict[float, Mapping[str, Tensor]]:
    """Return the averages of a snapshot by their stds, which are in the order of the hook's."""
    first, *others = stds
    averages = {first: {**snapshot["model"], **snapshot["exact"]}}
    return averages | {std: snapshot["further"][str(std)] for std in others}


def _add(
    total: dict[str, Tensor],
    factor: float,
    average: Mapping[str, Tensor],
    parameters: Iterable[str],
) -> None:
    """Add an average's parameters, times a factor, to the total."""
    for parameter in parameters:
        value = average[parameter]
        share = factor * value.to(torch.promote_types(value.dtype, torch.float64))
        total[parameter] = total[parameter] + share if parameter in total else share


def _make_state_dict(snapshot: Mapping[str, Any], total: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the model of a snapshot with the averaged parameters in their own types, under all of
    their names."""
    model = snapshot["model"]
    cast = {parameter: value.to(model[parameter].dtype) for parameter, value in total.items()}
    shared = {name: cast[parameter] for name, parameter in snapshot["averaged"].items()}
    return {**model, **shared}

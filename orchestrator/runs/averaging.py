"""Averages made after training: that of any std, from the snapshots that `ema` kept of others. Needs no Ray and none of
the task's code. Driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hooks.parts.power_average import LARGEST_STD, combination
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.errors import CheckpointError, StorageError, UsageError
from orchestrator.records.run_folder import RunFolder
from orchestrator.storage import Storage

AVERAGES = "averages"
"""Where in a run's folder they are written, unless somebody says it."""
LARGEST_ERROR = 0.05
"""How far the profile of an average may be from the one asked for, relative to that."""


@dataclass(frozen=True)
class Term:
    """What an average is the sum of: one that a checkpoint has, times a factor."""

    checkpoint: str
    step: int
    """Of its last update."""
    std: float
    factor: float = 0.0


@dataclass(frozen=True)
class Average:
    """The weights of an average, and what it was made of."""

    weights: dict[str, Tensor]
    """A state dict; what is no average in it, such as buffers, is the checkpoint's."""
    std: float
    checkpoint: str
    step: int
    """At which it is the average of the training so far."""
    error: float
    """The norm of the difference between its profile and that of `std`, relative to the latter."""
    terms: Sequence[Term]

    def save(self, path: str | Path | Storage) -> None:
        """Writes the weights into a file, as safetensors where it is called so, else as torch.save has it, under
        `model`. Raises UsageError where that cannot be written."""
        there = path if isinstance(path, Storage) else Storage(path)
        content = self._content(there.name.endswith(".safetensors"))
        try:
            there.parent.write(there.name, content)
        except (OSError, StorageError) as error:
            raise UsageError(f"cannot write {there}: {error}") from None

    def _content(self, as_safetensors: bool) -> bytes:
        if as_safetensors:
            try:
                from safetensors.torch import save
            except ImportError:
                raise UsageError(
                    "a file of safetensors needs that package: pip install 'hookyard[safetensors]'"
                ) from None
            # It refuses tensors that share their memory.
            return bytes(save({name: value.clone().contiguous() for name, value in self.weights.items()}))
        buffer = BytesIO()
        torch.save({"model": self.weights, "average": self.described()}, buffer)
        return buffer.getvalue()

    def described(self) -> dict[str, Any]:
        """What it is and what it was made of, as plain data."""
        terms = [asdict(term) for term in self.terms]
        return {"std": self.std, "checkpoint": self.checkpoint, "step": self.step, "error": self.error, "terms": terms}


def average(folder: RunFolder, std: float, at: int | None = None, hook: str | None = None) -> Average:
    """The average of a std at the newest snapshot, or that `at` a step, of the hook that is meant where there are
    several.

    Raises UsageError for a std that snapshots do not make well, a step without one, a run that has none, or a damaged
    checkpoint.
    """
    if not 0 < std <= LARGEST_STD:
        raise UsageError(
            f"std must be more than 0 and at most {LARGEST_STD}, which is nearly the plain mean, got {std:g}"
        )
    store = CheckpointStore(folder.kept_checkpoints(), folder.name)
    hook = _hook(folder, hook)
    try:
        kept = _kept(store, hook)
        name = _checkpoint(folder, store, kept, at)
        step = kept[name][0].step
        stored = [term for terms in kept.values() for term in terms if term.step <= step]
        factors, error = combination([(term.step, term.std) for term in stored], (step, std))
        if error > LARGEST_ERROR:
            raise UsageError(_too_far(folder, std, error, stored, step))
        terms = [Term(one.checkpoint, one.step, one.std, factor) for one, factor in zip(stored, factors, strict=True)]
        return Average(_sum(store, hook, terms), std, name, step, error, terms)
    except CheckpointError as failure:
        raise UsageError(str(failure)) from None


def _hook(folder: RunFolder, asked: str | None) -> str:
    """The hook whose averages are meant."""
    hooks: Mapping[str, Any] = folder.experiment().get("hooks") or {}
    there = [name for name, one in hooks.items() if isinstance(one, dict) and one.get("average") == "power"]
    if not there:
        raise UsageError(
            f"{folder} has no snapshots to make an average of; train with hooks: {{ema: {{average: power, std: [0.05,"
            " 0.10]}}"
        )
    if asked not in (*there, None) or (asked is None and len(there) > 1):
        raise UsageError(
            f"{folder} has power averages of {', '.join(there)}, and {asked or 'none of them'} is asked for; name one"
            " with --hook"
        )
    return asked or there[0]


def _kept(store: CheckpointStore, hook: str) -> dict[str, list[Term]]:
    """The averages that checkpoints have, by name, oldest first; of two at the same step the one that was made
    later."""
    by_step: dict[int, tuple[str, list[Term]]] = {}
    for name in store.names():
        known = store.load(name, "hooks.pt").get(hook) if f"{hook}.pt" in store.files(name) else None
        if known and known.get("updates"):
            by_step[known["step"]] = name, [Term(name, known["step"], std) for std in known["std"]]
    return dict(by_step.values())


def _checkpoint(folder: RunFolder, store: CheckpointStore, kept: Mapping[str, Any], at: int | None) -> str:
    steps = {store.position(name).step: name for name in kept}
    if not steps:
        raise UsageError(f"{folder} has no snapshot yet: none of its checkpoints has an average")
    if at is not None and at not in steps:
        near = sorted(sorted(steps, key=lambda step: abs(step - at))[:6])
        raise UsageError(
            f"{folder} has no snapshot at step {at}; there are"
            f" {', '.join(map(str, near))}{' and others' if len(steps) > 6 else ''}"
        )
    return steps[max(steps) if at is None else at]


def _too_far(folder: RunFolder, std: float, error: float, stored: Sequence[Term], step: int) -> str:
    """What to say of a std that would not be met, with those that would."""
    profiles = [(term.step, term.std) for term in stored]
    tried = [round(0.005 * place, 3) for place in range(1, 58)]
    met = [combination(profiles, (step, one))[1] <= LARGEST_ERROR for one in tried]
    ranges = [
        [one for one, _ in group]
        for is_met, group in groupby(zip(tried, met, strict=True), key=lambda pair: pair[1])
        if is_met
    ]
    which = " and ".join(f"from {one[0]:g} to {one[-1]:g}" for one in ranges) or " and ".join(
        sorted({f"{term.std:g}" for term in stored})
    )
    count = len({term.checkpoint for term in stored})
    return (
        f"{count} snapshot{'s' if count > 1 else ''} of {folder} up to step {step} do not make the average of std"
        f" {std:g}: its profile would be off by {error:.2g} of its norm, and {LARGEST_ERROR:g} is the most; they make"
        f" {which}. More snapshots, or averages of a std nearer to it, would"
    )


def _sum(store: CheckpointStore, hook: str, terms: Sequence[Term]) -> dict[str, Tensor]:
    """The terms' sum, in float64, as the state dict of the last of their checkpoints."""
    total: dict[str, Tensor] = {}
    record: Mapping[str, Any] = {}
    for checkpoint in dict.fromkeys(term.checkpoint for term in terms):
        record = store.weights(checkpoint, hook)
        first = {**record["model"], **record["exact"]}
        for number, term in enumerate(one for one in terms if one.checkpoint == checkpoint):
            averages = record["further"][str(term.std)] if number else first
            for parameter in {*record["averaged"].values()}:
                value = averages[parameter].to(torch.promote_types(averages[parameter].dtype, torch.float64))
                total[parameter] = total[parameter] + term.factor * value if parameter in total else term.factor * value
    model, averaged = record["model"], record["averaged"]
    narrowed = {parameter: value.to(model[parameter].dtype) for parameter, value in total.items()}
    return {one: narrowed[averaged[one]] if one in averaged else value for one, value in model.items()}

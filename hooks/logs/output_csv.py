"""What the model says of each sample."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from hooks.hook import Hook, Priority, Ranks
from hooks.metrics.names import kind_of
from hooks.state import State

PENDING = 50
"""Batches whose values stay on their device, at most."""


@dataclass
class OutputCSV(Hook):
    """Writes the predicted class of each val and test sample, with its target, one CSV file a phase.

    `<artifacts>/<hook's name>/val/step-00000100.csv` has `id`, `predicted`, `target` and, where they are asked for, the
    outputs as `score_0`, `score_1` ...; averaged weights that are validated besides have a folder of their own, such as
    `val/ema`. Outputs are scores of shape (B, C), targets are classes (B,), or one-hot or soft (B, C), of which the
    largest counts. Every rank keeps its samples in memory until the phase ends; then the master gathers them and writes
    a line of each rank in turn, which is the order of the dataset as the loop deals it out. One collective at the end
    of each phase. Raises ValueError for outputs and targets of other shapes and for keys that a batch does not have.
    Source: ClassyVision OutputCSVHook, whose ranks write into one file.
    """

    id_key: int | str | None = None
    """Where in a batch the samples' ids are: a place or a key; without it their places in the dataset, from 0."""
    target_key: int | str | None = 1
    """Where in a batch the targets are; null writes none."""
    scores: bool = False
    """Writes the outputs too."""
    phases: tuple[Literal["val", "test"], ...] = ("val", "test")
    """The phases that are written, each of a kind where there are several."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.LOW
    ranks: ClassVar[Ranks] = Ranks.ALL
    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._samples: dict[str, _Samples] = {}

    def on_phase_start(self, state: State) -> None:
        self._samples = (
            {label: _Samples() for label in state.evaluations} if kind_of(state.phase) in self.phases else {}
        )

    def on_loss(self, state: State) -> None:
        if not self._samples or state.phase == "train":
            return
        self._samples[state.evaluation].add(self._columns(state))

    def on_phase_end(self, state: State) -> None:
        if not self._samples:
            return
        own = {label: samples.columns() for label, samples in self._samples.items()}
        self._samples = {}
        ranks: list[Any] | None = [own] * state.world_size if state.is_master else None
        if state.world_size > 1:
            dist.gather_object(own, ranks)
        for label in own if ranks else ():
            folder = state.artifacts / (self.name or "output_csv") / state.phase / label
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"step-{state.step:08d}.csv").open("w", newline="") as file:
                csv.writer(file).writerows(_lines([rank[label] for rank in ranks or ()]))

    def _columns(self, state: State) -> dict[str, Any]:
        output = state.output
        if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] < 2:
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                "output_csv needs outputs of shape (samples, classes), with two classes or more; the task's are"
                f" {shape}"
            )
        columns: dict[str, Any] = {"predicted": output.argmax(1)}
        if self.id_key is not None:
            columns["id"] = _entry(state.batch, self.id_key, "id_key")
        if self.target_key is not None:
            columns["target"] = _classes(_entry(state.batch, self.target_key, "target_key"), len(output))
        if self.scores:
            columns["scores"] = output.detach()
        return columns


class _Samples:
    """One rank's samples of one phase: batches that are on their device still, and what was read of those before."""

    def __init__(self) -> None:
        self._pending: list[dict[str, Any]] = []
        self._read: dict[str, list[Any]] = {}

    def add(self, columns: dict[str, Any]) -> None:
        """Takes a batch."""
        self._pending.append(columns)
        if len(self._pending) >= PENDING:
            self.columns()

    def columns(self) -> dict[str, list[Any]]:
        """All so far, in pieces: tensors on the CPU, or lists; what is pending is read in one transfer for each
        column."""
        pending, self._pending = self._pending, []
        for name in pending[0] if pending else ():
            self._read.setdefault(name, []).append(_joined([columns[name] for columns in pending]))
        return self._read


def _lines(ranks: Sequence[Mapping[str, list[Any]]]) -> Iterator[list[Any]]:
    """The table of all ranks: its header, and a line of each rank in turn until none has any."""
    some = next((rank for rank in ranks if rank), {})
    scores = [f"score_{index}" for index in range(some["scores"][0].shape[1])] if "scores" in some else []
    yield ["id", "predicted", *(["target"] if "target" in some else []), *scores]
    own = [_of_rank(rank, number, len(ranks)) for number, rank in enumerate(ranks)]
    yield from (line for lines in zip_longest(*own) for line in lines if line is not None)


def _of_rank(columns: Mapping[str, list[Any]], rank: int, world_size: int) -> Iterator[list[Any]]:
    values = {
        name: chain.from_iterable(piece.tolist() if isinstance(piece, Tensor) else piece for piece in pieces)
        for name, pieces in columns.items()
    }
    scores = values.pop("scores", None)
    names = [name for name in ("predicted", "target") if name in values]
    for place, line in enumerate(zip(*(values[name] for name in names), strict=True)):
        identity = next(values["id"]) if "id" in values else rank + world_size * place
        yield [identity, *line, *(next(scores) if scores else ())]


def _entry(batch: Any, key: int | str, parameter: str) -> Any:
    try:
        return batch[key]
    except (KeyError, IndexError, TypeError) as error:
        there = f"the keys {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else f"{len(batch)} entries"
        raise ValueError(f"output_csv: {parameter} is {key!r}, and a batch has {there}") from error


def _classes(target: Any, samples: int) -> Tensor:
    """Targets as classes, of shape (B,)."""
    found = torch.as_tensor(target)
    if found.shape == (samples, 1):
        return found.squeeze(1)
    if found.ndim == 2 and len(found) == samples:
        return found.argmax(1)
    if found.shape != (samples,):
        raise ValueError(
            f"output_csv takes targets of shape ({samples},) or ({samples}, classes); the batch's have"
            f" {tuple(found.shape)}"
        )
    return found


def _joined(values: list[Any]) -> Any:
    return torch.cat(values).cpu() if isinstance(values[0], Tensor) else [*chain.from_iterable(values)]

"""Predictions as CSV files."""

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
"""Most batches that stay on their device."""


@dataclass
class OutputCSV(Hook):
    """Predicted class and target of each val and test sample, in a CSV file per phase.

        output_csv: {id_key: id, target_key: label, scores: true}

    `<artifacts>/<hook's name>/val/step-00000100.csv` has `id`, `predicted`, `target` and, with `scores`, the outputs as
    `score_0`, `score_1`, ... Averaged weights that are also validated have a folder of their own, such as `val/ema`.
    Outputs are scores of shape (B, C); targets are classes (B,), or one-hot or soft (B, C). Each rank keeps its samples
    in memory until the phase ends; the master then gathers and writes them in the order of the dataset. Source:
    ClassyVision OutputCSVHook.
    """

    id_key: int | str | None = None
    """Index or key of the samples' ids in a batch; by default their indices in the dataset."""
    target_key: int | str | None = 1
    """Index or key of the targets in a batch; null writes none."""
    scores: bool = False
    """Writes the outputs too."""
    phases: tuple[Literal["val", "test"], ...] = ("val", "test")
    """Kinds of phases to write."""

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
                csv.writer(file).writerows(_table([rank[label] for rank in ranks or ()]))

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
    """The samples of a rank in a phase."""

    def __init__(self) -> None:
        self._pending: list[dict[str, Any]] = []
        """Batches that are still on their device."""
        self._read: dict[str, list[Any]] = {}

    def add(self, columns: dict[str, Any]) -> None:
        self._pending.append(columns)
        if len(self._pending) >= PENDING:
            self.columns()

    def columns(self) -> dict[str, list[Any]]:
        """Return all samples so far, in pieces: tensors on the CPU, or lists. Reads pending batches in one transfer."""
        pending, self._pending = self._pending, []
        for name in pending[0] if pending else ():
            self._read.setdefault(name, []).append(_join([columns[name] for columns in pending]))
        return self._read


def _table(ranks: Sequence[Mapping[str, list[Any]]]) -> Iterator[list[Any]]:
    """Yield the header, and a line of each rank in turn until none is left."""
    example = next((rank for rank in ranks if rank), {})
    scores = [f"score_{index}" for index in range(example["scores"][0].shape[1])] if "scores" in example else []
    yield ["id", "predicted", *(["target"] if "target" in example else []), *scores]
    lines_by_rank = [_lines(columns, rank, len(ranks)) for rank, columns in enumerate(ranks)]
    yield from (line for lines in zip_longest(*lines_by_rank) for line in lines if line is not None)


def _lines(columns: Mapping[str, list[Any]], rank: int, world_size: int) -> Iterator[list[Any]]:
    values = {
        name: chain.from_iterable(piece.tolist() if isinstance(piece, Tensor) else piece for piece in pieces)
        for name, pieces in columns.items()
    }
    scores = values.pop("scores", None)
    names = [name for name in ("predicted", "target") if name in values]
    for place, line in enumerate(zip(*(values[name] for name in names), strict=True)):
        sample_id = next(values["id"]) if "id" in values else rank + world_size * place
        yield [sample_id, *line, *(next(scores) if scores else ())]


def _entry(batch: Any, key: int | str, parameter: str) -> Any:
    try:
        return batch[key]
    except (KeyError, IndexError, TypeError) as error:
        entries = f"the keys {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else f"{len(batch)} entries"
        raise ValueError(f"output_csv: {parameter} is {key!r}, and a batch has {entries}") from error


def _classes(target: Any, samples: int) -> Tensor:
    """Return targets as classes, of shape (B,)."""
    classes = torch.as_tensor(target)
    if classes.shape == (samples, 1):
        return classes.squeeze(1)
    if classes.ndim == 2 and len(classes) == samples:
        return classes.argmax(1)
    if classes.shape != (samples,):
        raise ValueError(
            f"output_csv takes targets of shape ({samples},) or ({samples}, classes); the batch's have"
            f" {tuple(classes.shape)}"
        )
    return classes


def _join(values: list[Any]) -> Any:
    return torch.cat(values).cpu() if isinstance(values[0], Tensor) else [*chain.from_iterable(values)]

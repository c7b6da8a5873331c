"""What the model says of each sample."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hooks.hook import Hook, Priority, Ranks
from hooks.parts import coalesced_collectives as coalesced
from hooks.state import State

PENDING = 50
"""Batches whose values stay on their device, at most, before they are written."""


@dataclass
class OutputCSV(Hook):
    """Writes the predicted class of each val and test sample, with its target, one CSV file a phase.

    `<artifacts>/<hook's name>/val/step-00000100.csv` has `id`, `predicted`, `target` and, where they are asked for, the
    outputs as `score_0`, `score_1` ...; averaged weights that are validated besides have a folder of their own, such as
    `val/ema`. Outputs are scores of shape (B, C), targets are classes (B,), or one-hot or soft (B, C), of which the
    largest counts. Every rank writes a part; once all have, the master puts them together, a line of each rank in turn,
    which is the order of the dataset as the loop deals it out. Where ranks do not share a disk the parts stay as they
    are. One collective at the end of each phase. Raises ValueError for outputs and targets of other shapes and for keys
    that a batch does not have. Source: ClassyVision OutputCSVHook, whose ranks write into one file.
    """

    id_key: int | str | None = None
    """Where in a batch the samples' ids are: a place or a key; without it their places in the dataset, from 0."""
    target_key: int | str | None = 1
    """Where in a batch the targets are; null writes none."""
    scores: bool = False
    """Writes the outputs too."""
    phases: tuple[Literal["val", "test"], ...] = ("val", "test")
    """The phases that are written."""

    priority: ClassVar[Priority | int] = Priority.LOW
    ranks: ClassVar[Ranks] = Ranks.ALL
    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._parts: dict[str, _Part] = {}

    def on_phase_start(self, state: State) -> None:
        if state.phase not in self.phases:
            return
        for label in state.evaluations:
            folder = state.artifacts / (self.name or "output_csv") / state.phase / label
            self._parts[label] = _Part(folder, f"step-{state.step:08d}", state.rank, state.world_size)

    def on_loss(self, state: State) -> None:
        if not self._parts or state.phase == "train":
            return
        labels = list(self._parts)
        part = self._parts[labels[state.phase_iteration * len(labels) // state.phase_length]]
        part.add(self._columns(state))

    def on_phase_end(self, state: State) -> None:
        if not self._parts:
            return
        parts, self._parts = list(self._parts.values()), {}
        written = torch.tensor([part.close() for part in parts], device=state.device)
        if state.world_size > 1:
            coalesced.total([written])  # and so nobody is still writing
        if state.is_master:
            for part, samples in zip(parts, written.tolist(), strict=True):
                part.merge(samples)

    def on_exception(self, state: State, error: BaseException) -> None:
        for part in self._parts.values():
            part.close()

    def _columns(self, state: State) -> dict[str, Any]:
        output = state.output
        if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] < 2:
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(f"output_csv needs outputs of shape (samples, classes), with two classes or more; the task's are {shape}")
        columns: dict[str, Any] = {"predicted": output.argmax(1)}
        if self.id_key is not None:
            columns["id"] = _entry(state.batch, self.id_key, "id_key")
        if self.target_key is not None:
            columns["target"] = _classes(_entry(state.batch, self.target_key, "target_key"), len(output))
        if self.scores:
            columns["scores"] = output.detach()
        return columns


class _Part:
    """One rank's lines of one file."""

    def __init__(self, folder: Path, name: str, rank: int, world_size: int) -> None:
        self._folder, self._name = folder, name
        self._rank, self._world_size = rank, world_size
        self._pending: list[dict[str, Any]] = []
        self._samples = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._file = self._path(rank).open("w", newline="")
        self._writer = csv.writer(self._file)

    def _path(self, rank: int) -> Path:
        return self._folder / f"{self._name}.rank={rank}.csv"

    def add(self, columns: dict[str, Any]) -> None:
        """Takes a batch."""
        self._pending.append(columns)
        if len(self._pending) >= PENDING:
            self._write()

    def close(self) -> int:
        """Writes what is pending; returns the number of samples."""
        self._write()
        self._file.close()
        return self._samples

    def _write(self) -> None:
        """Reads the pending batches, in one transfer for each column, and writes a line for each sample."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        read = {name: _joined([columns[name] for columns in pending]) for name in pending[0]}
        count = len(read["predicted"])
        first = self._samples
        ids = read.get("id") or [self._rank + self._world_size * place for place in range(first, first + count)]
        columns = [ids, read["predicted"], *([read["target"]] if "target" in read else [])]
        scores = read.get("scores") or [[]] * count
        if first == 0:
            names = ["id", "predicted", *(["target"] if "target" in read else [])]
            self._writer.writerow(names + [f"score_{index}" for index in range(len(scores[0]))])
        self._writer.writerows([*line, *more] for *line, more in zip(*columns, scores, strict=True))
        self._samples += count

    def merge(self, samples: int) -> None:
        """Makes one file of the parts of all ranks, if together they have so many samples."""
        paths = [self._path(rank) for rank in range(self._world_size)]
        if not all(path.exists() for path in paths):
            return
        merged = self._folder / f".{self._name}.partial"
        with ExitStack() as opened, merged.open("w", newline="") as target:
            readers: list[Iterator[list[str]]] = [csv.reader(opened.enter_context(path.open(newline=""))) for path in paths]
            headers = [next(reader, None) for reader in readers]
            writer = csv.writer(target)
            writer.writerow(next((header for header in headers if header), ["id", "predicted"]))
            count = 0
            for line in _in_turn(readers):
                writer.writerow(line)
                count += 1
        if count != samples:
            merged.unlink()
            return
        merged.replace(self._folder / f"{self._name}.csv")
        for path in paths:
            path.unlink()


def _in_turn(readers: list[Iterator[list[str]]]) -> Iterator[list[str]]:
    """A line of each, again and again, until none has any."""
    while readers:
        lines = [(reader, next(reader, None)) for reader in readers]
        readers = [reader for reader, line in lines if line is not None]
        yield from (line for _, line in lines if line is not None)


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
        raise ValueError(f"output_csv takes targets of shape ({samples},) or ({samples}, classes); the batch's have {tuple(found.shape)}")
    return found


def _joined(values: list[Any]) -> list[Any]:
    if isinstance(values[0], Tensor):
        return list(torch.cat(values).tolist())
    return [item for batch in values for item in batch]

"""Values by layer, which a rank measures now and then: too many for the columns of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from hooks.interval import STEPS_OR_NEVER, Interval, StepsOrNever
from hooks.parts.cleanup import Cleanup
from hooks.state import State

if TYPE_CHECKING:
    import pyarrow as pa

PENDING = 100
"""How many readings wait on their device, at most, before they are written."""


class LayerTable:
    """One rank's values by layer, as Parquet files under `<artifacts>/<name>/rank=R/`.

    `pandas.read_parquet("<artifacts>/<name>")` gives those of all ranks: a row for each reading and layer, with where
    in the run it was taken, `layer`, and a column for each statistic. Values stay on their device until `write`, which
    reads all of them in one transfer; call it as a phase ends and before a checkpoint. A table that is opened again
    drops what came after `state.iteration`, of ranks that are no more, too: no file holds rows of both sides of a
    checkpoint.

    The newest reading is also `state.info[name]`, for whoever draws it: `<layer>/<statistic>` to a tensor of one
    element. It is a new mapping each time.
    """

    def __init__(self, name: str, state: State) -> None:
        import pyarrow.parquet  # noqa: F401  # a third of a second, here and not in the middle of training

        self._name = name
        self._folder = state.artifacts / name / f"rank={state.rank}"
        self._pending: list[tuple[Mapping[str, int], Sequence[str], Sequence[str], Tensor]] = []
        gone = (
            []
            if state.rank
            else [folder for folder in self._folder.parent.glob("rank=*") if _rank(folder) >= state.world_size]
        )
        for file in (file for folder in (self._folder, *gone) for file in folder.glob("*.parquet")):
            if int(file.stem) > state.iteration:
                file.unlink()

    def add(self, state: State, layers: Sequence[str], statistics: Mapping[str, Tensor], **position: int) -> None:
        """Takes a reading: each statistic is a tensor of shape (layers,), all of one dtype. `position` says where in
        the run besides the epoch and the iteration, which is the one under way and not counted yet."""
        values = torch.stack(list(statistics.values())).detach()
        position = {"epoch": state.epoch, "iteration": state.iteration + 1, **position}
        self._pending.append((position, layers, list(statistics), values))
        state.info[self._name] = {
            f"{layer}/{statistic}": value
            for statistic, row in zip(statistics, values.unbind(), strict=True)
            for layer, value in zip(layers, row.unbind(), strict=True)
        }
        if len(self._pending) >= PENDING:
            self.write()

    def write(self) -> None:
        """Writes the readings that wait; waits for the device if there are any."""
        if not self._pending:
            return
        import pyarrow as pa
        from pyarrow import parquet

        pending, self._pending = self._pending, []
        flat = torch.cat([values.reshape(-1) for *_, values in pending]).cpu()
        numbers = torch.split(flat, [values.numel() for *_, values in pending])
        readings = [
            _reading(position, layers, statistics, values.view(len(statistics), -1))
            for (position, layers, statistics, _), values in zip(pending, numbers, strict=True)
        ]
        self._folder.mkdir(parents=True, exist_ok=True)
        last = pending[-1][0]["iteration"]
        unfinished = self._folder / f".{last}"
        parquet.write_table(pa.concat_tables(readings, promote_options="default"), unfinished)
        unfinished.replace(self._folder / f"{last:010d}.parquet")


@dataclass
class LayerMeasurement(Cleanup):
    """The part of a hook that keeps its measurements in Parquet files under `folder`, which are on disk before a
    checkpoint is."""

    every: StepsOrNever = Interval(100, "steps")
    """Optimizer steps between two measurements."""

    folder: ClassVar[str]

    def __post_init__(self) -> None:
        STEPS_OR_NEVER.parse(self.every)
        self._table: LayerTable | None = None

    def on_start(self, state: State) -> None:
        self._table = LayerTable(self.folder, state)

    def keep(self, state: State, layers: Sequence[str], statistics: Mapping[str, Tensor], **position: int) -> None:
        """Adds a measurement, as `LayerTable.add` takes it."""
        if self._table is not None:
            self._table.add(state, layers, statistics, **position)

    def on_phase_end(self, state: State) -> None:
        self.close()

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._write()

    def close(self) -> None:
        self.release()
        self._write()

    def release(self) -> None:
        """Gives up a measurement that is under way."""

    def _write(self) -> None:
        if self._table is not None:
            self._table.write()


def _rank(folder: Path) -> int:
    return int(folder.name.removeprefix("rank="))


def _reading(position: Mapping[str, int], layers: Sequence[str], statistics: Sequence[str], values: Tensor) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, Any] = {name: [number] * len(layers) for name, number in position.items()}
    columns |= {"layer": list(layers), **{name: row.numpy() for name, row in zip(statistics, values, strict=True)}}
    return pa.table(columns)

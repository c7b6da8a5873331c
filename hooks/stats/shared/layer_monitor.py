"""Measurements by layer."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hooks.hook import Cleanup, Priority
from hooks.interval import Interval, StepsOrNever, at_interval
from hooks.model.layers import find_leaf_modules, run_uncompiled
from hooks.setup import Setup
from hooks.state import State

PENDING = 100
"""Maximum number of measurements that stay on their device before they are written."""


@dataclass(frozen=True)
class _Measurement:
    """Statistics of the layers in one iteration."""

    epoch: int
    iteration: int
    layers: Sequence[str]
    statistics: Sequence[str]
    values: Tensor
    """On their device, of shape (statistics, layers)."""

    def columns(self, values: Tensor) -> dict[str, Any]:
        """Return the columns of a table, with a copy of the values on the CPU."""
        count = len(self.layers)
        columns: dict[str, Any] = {
            "epoch": [self.epoch] * count,
            "iteration": [self.iteration] * count,
            "layer": list(self.layers),
        }
        rows = values.view(len(self.statistics), count)
        for statistic, row in zip(self.statistics, rows, strict=True):
            columns[statistic] = row.numpy()
        return columns


@dataclass
class LayerMonitor(Cleanup):
    """Base of hooks that watch leaf modules in the forward passes of some training iterations.

    Each rank watches its own model, without communication. A hook implements `watch`, which puts
    module hooks on a layer for a measured iteration, which runs uncompiled, and `read`, which takes
    the results.

    Results are in Parquet files under `<artifacts>/<folder>/rank=R/`.
    `pandas.read_parquet("<artifacts>/<folder>")` reads those of all ranks: a row for each
    measurement and layer, with its position, `layer`, and a column for each statistic. Values stay
    on their device until a phase ends or a checkpoint is saved, and are read in one transfer. A
    resumed run drops the rows after its checkpoint, even those of ranks that no longer exist. The
    newest measurement is also `state.info[folder]`: `<layer>/<statistic>` to a tensor of one
    element.
    """

    every: StepsOrNever = Interval(100, "steps")
    """Optimizer steps between measurements; each micro-batch of such a step is measured."""

    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    folder: ClassVar[str]

    def __post_init__(self) -> None:
        self._files = Path()
        self._pending: list[_Measurement] = []
        self._watching = ExitStack()

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(splits_batches="it measures the forward pass of a whole batch, once")

    @abstractmethod
    def watch(self, name: str, layer: nn.Module, state: State) -> None:
        """Put module hooks on a layer, each by `until_read`."""

    @abstractmethod
    def read(self, state: State) -> None:
        """Take the results at the end of the forward pass."""

    def until_read(self, handle: RemovableHandle) -> None:
        """Remove a module hook at the end of the forward pass."""
        self._watching.enter_context(handle)

    def on_start(self, state: State) -> None:
        import pyarrow.parquet  # noqa: F401  # here rather than during training

        self._files = state.artifacts / self.folder / f"rank={state.rank}"
        folders = [self._files]
        if state.is_master:
            folders += [
                folder
                for folder in self._files.parent.glob("rank=*")
                if int(folder.name.removeprefix("rank=")) >= state.world_size
            ]
        for folder in folders:
            for file in folder.glob("*.parquet"):
                if int(file.stem) > state.iteration:
                    file.unlink()

    @at_interval("every")
    def on_batch(self, state: State) -> None:
        self._watching.enter_context(run_uncompiled())
        for name, layer in find_leaf_modules(state.module):
            self.watch(name, layer, state)

    @at_interval("every")
    def on_forward(self, state: State) -> None:
        self._watching.close()
        self.read(state)

    def keep(self, state: State, layers: Sequence[str], statistics: Mapping[str, Tensor]) -> None:
        """Add a measurement in the current iteration: tensors of shape (layers,) and one dtype, by
        statistic."""
        values = torch.stack(list(statistics.values())).detach()
        self._pending.append(
            _Measurement(state.epoch, state.iteration + 1, layers, list(statistics), values)
        )
        newest: dict[str, Tensor] = {}
        for statistic, row in zip(statistics, values.unbind(), strict=True):
            for layer, value in zip(layers, row.unbind(), strict=True):
                newest[f"{layer}/{statistic}"] = value
        state.info[self.folder] = newest
        if len(self._pending) >= PENDING:
            self._write()

    def on_phase_end(self, state: State) -> None:
        self.close()

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._write()

    def close(self) -> None:
        self._watching.close()
        self._write()

    def _write(self) -> None:
        if not self._pending:
            return
        import pyarrow as pa
        from pyarrow import parquet

        pending = self._pending
        self._pending = []
        # One transfer for all.
        flat = torch.cat([measurement.values.reshape(-1) for measurement in pending]).cpu()
        numbers = torch.split(flat, [measurement.values.numel() for measurement in pending])
        tables = [
            pa.table(measurement.columns(values))
            for measurement, values in zip(pending, numbers, strict=True)
        ]
        self._files.mkdir(parents=True, exist_ok=True)
        last = pending[-1].iteration
        unfinished = self._files / f".{last}"
        parquet.write_table(pa.concat_tables(tables, promote_options="default"), unfinished)
        unfinished.replace(self._files / f"{last:010d}.parquet")

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
from hooks.stats.shared.measurement_files import Measurement, MeasurementFiles, drop_files_after


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
        self._files: MeasurementFiles | None = None
        self._watching = ExitStack()
        """The module hooks of the measured iteration."""

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
        folder = state.artifacts / self.folder
        own = folder / f"rank={state.rank}"
        folders = [own]
        if state.is_master:
            folders += _list_lost_ranks(folder, state.world_size)
        drop_files_after(state.iteration, folders)
        self._files = MeasurementFiles(own)

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
        assert self._files is not None
        values = torch.stack(list(statistics.values())).detach()
        measurement = Measurement(
            state.epoch, state.iteration + 1, layers, list(statistics), values
        )
        state.info[self.folder] = measurement.name_values()
        self._files.add(measurement)

    def on_phase_end(self, state: State) -> None:
        self.close()

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._write()

    def close(self) -> None:
        self._watching.close()
        self._write()

    def _write(self) -> None:
        if self._files is not None:
            self._files.write()


def _list_lost_ranks(folder: Path, world_size: int) -> list[Path]:
    """Return the folders of ranks that no longer exist."""
    folders = []
    for rank in folder.glob("rank=*"):
        if int(rank.name.removeprefix("rank=")) >= world_size:
            folders.append(rank)
    return folders

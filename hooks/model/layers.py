"""Measurements by layer."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hooks.hook import Cleanup, Priority
from hooks.interval import Interval, StepsOrNever, at_interval
from hooks.private_torch import compiler_is_imported, tree_leaves
from hooks.state import State

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
RunningNorm = BatchNorm | nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
"""Layers that can normalize with running statistics."""


PENDING = 100
"""Maximum number of measurements that stay on their device before they are written."""


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
        self._pending: list[tuple[Mapping[str, int], Sequence[str], Sequence[str], Tensor]] = []
        self._watching = ExitStack()

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
        ranks = {
            int(folder.name.removeprefix("rank=")): folder
            for folder in self._files.parent.glob("rank=*")
        }
        obsolete = [
            folder for rank, folder in ranks.items() if rank >= state.world_size and state.is_master
        ]
        for file in (
            file for folder in (self._files, *obsolete) for file in folder.glob("*.parquet")
        ):
            if int(file.stem) > state.iteration:
                file.unlink()

    @at_interval("every")
    def on_batch(self, state: State) -> None:
        self._watching.enter_context(run_uncompiled())
        for name, layer in leaf_modules(state.module):
            self.watch(name, layer, state)

    @at_interval("every")
    def on_forward(self, state: State) -> None:
        self._watching.close()
        self.read(state)

    def keep(self, state: State, layers: Sequence[str], statistics: Mapping[str, Tensor]) -> None:
        """Add a measurement in the current iteration: tensors of shape (layers,) and one dtype, by
        statistic."""
        values = torch.stack(list(statistics.values())).detach()
        position = {"epoch": state.epoch, "iteration": state.iteration + 1}
        self._pending.append((position, layers, list(statistics), values))
        state.info[self.folder] = {
            f"{layer}/{statistic}": value
            for statistic, row in zip(statistics, values.unbind(), strict=True)
            for layer, value in zip(layers, row.unbind(), strict=True)
        }
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

        pending, self._pending = self._pending, []
        flat = torch.cat([values.reshape(-1) for *_, values in pending]).cpu()
        numbers = torch.split(flat, [values.numel() for *_, values in pending])
        tables = []
        for (position, layers, statistics, _), values in zip(pending, numbers, strict=True):
            columns: dict[str, Any] = {
                name: [number] * len(layers) for name, number in position.items()
            }
            rows = zip(statistics, values.view(len(statistics), -1), strict=True)
            tables.append(
                pa.table(
                    {**columns, "layer": list(layers), **{name: row.numpy() for name, row in rows}}
                )
            )
        self._files.mkdir(parents=True, exist_ok=True)
        last = pending[-1][0]["iteration"]
        unfinished = self._files / f".{last}"
        parquet.write_table(pa.concat_tables(tables, promote_options="default"), unfinished)
        unfinished.replace(self._files / f"{last:010d}.parquet")


def leaf_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules without children by name; a model without parts has the name of its
    type."""
    for name, module in model.named_modules():
        if not any(module.children()):
            yield name or type(module).__name__, module


def tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def run_uncompiled() -> AbstractContextManager[Any]:
    """Run compiled models uncompiled, because compiled code does not call module hooks."""
    if not compiler_is_imported():
        return nullcontext()
    context: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return context

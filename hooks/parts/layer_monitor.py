"""What hooks have in common that watch the model's layers now and then."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hooks.hook import Priority
from hooks.parts.layer_table import LayerTable
from hooks.parts.leaf_modules import leaf_modules, uncompiled
from hooks.rhythm import Rhythm, paced_by
from hooks.state import State


@dataclass
class LayerMonitor(ABC):
    """The part of a hook that watches leaf modules in the forward passes of some training iterations.

    Every rank watches its own; no communication. A hook brings `watch`, which puts module hooks on a layer, and `read`,
    which takes what they saw. They are there only in the iterations that are measured; a compiled model runs those
    uncompiled. What is read goes to Parquet files under `folder`.
    """

    every: Rhythm = Rhythm(100, "steps")
    """Optimizer steps between two measurements; of such a step each micro-batch is measured."""

    folder: ClassVar[str]
    priority: ClassVar[Priority | int] = Priority.VERY_HIGH

    def __post_init__(self) -> None:
        self.every.require_steps("every")
        self._watching = ExitStack()
        self._table: LayerTable | None = None

    @abstractmethod
    def watch(self, name: str, layer: nn.Module, state: State) -> None:
        """Puts module hooks on a layer, each by `until_read`."""

    @abstractmethod
    def read(self, state: State) -> None:
        """Takes what the module hooks saw, once the forward pass is over."""

    def until_read(self, handle: RemovableHandle) -> None:
        """Takes a module hook away when the forward pass is over."""
        self._watching.callback(handle.remove)

    def keep(self, state: State, layers: Sequence[str], statistics: Mapping[str, Tensor]) -> None:
        """Adds a reading to the files; each statistic is of shape (layers,)."""
        if self._table is not None:
            self._table.add(state, layers, statistics)

    def on_start(self, state: State) -> None:
        self._table = LayerTable(self.folder, state)

    @paced_by("every")
    def on_batch(self, state: State) -> None:
        self._watching.enter_context(uncompiled())
        for name, layer in leaf_modules(state.module):
            self.watch(name, layer, state)

    @paced_by("every")
    def on_forward(self, state: State) -> None:
        self._watching.close()
        self.read(state)

    def on_phase_end(self, state: State) -> None:
        self._write()

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._write()

    def on_end(self, state: State) -> None:
        self._watching.close()
        self._write()

    def on_exception(self, state: State, error: BaseException) -> None:
        self._watching.close()
        self._write()

    def _write(self) -> None:
        if self._table is not None:
            self._table.write()

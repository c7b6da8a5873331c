"""What hooks have in common that measure layers or parameters now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from hooks.parts.cleanup import Cleanup
from hooks.parts.layer_table import LayerTable
from hooks.rhythm import Rhythm
from hooks.state import State


@dataclass
class LayerMeasurement(Cleanup):
    """The part of a hook that keeps its measurements in Parquet files under `folder`, which are on disk before a checkpoint is."""

    every: Rhythm = Rhythm(100, "steps")
    """Optimizer steps between two measurements."""

    folder: ClassVar[str]

    def __post_init__(self) -> None:
        self.every.require_steps("every")
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

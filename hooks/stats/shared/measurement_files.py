"""Parquet files of statistics by layer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MAX_PENDING = 100
"""Maximum number of measurements that stay on their device before they are written."""


@dataclass(frozen=True)
class Measurement:
    """Statistics of the layers in one iteration."""

    epoch: int
    iteration: int
    layers: Sequence[str]
    statistics: Sequence[str]
    values: Tensor
    """On their device, of shape (statistics, layers)."""

    def name_values(self) -> dict[str, Tensor]:
        """Return each value on its device as `<layer>/<statistic>`."""
        named = {}
        for statistic, row in zip(self.statistics, self.values.unbind(), strict=True):
            for layer, value in zip(self.layers, row.unbind(), strict=True):
                named[f"{layer}/{statistic}"] = value
        return named

    def make_columns(self, values: Tensor) -> dict[str, Any]:
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


class MeasurementFiles:
    """Files of one rank, with a row for each measurement and layer; each is named after its last
    iteration."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet  # noqa: F401  # here rather than during training

        self._folder = folder
        self._pending: list[Measurement] = []

    def add(self, measurement: Measurement) -> None:
        self._pending.append(measurement)
        if len(self._pending) >= MAX_PENDING:
            self.write()

    def write(self) -> None:
        """Write the pending measurements into a file, after one transfer from their device."""
        if not self._pending:
            return
        import pyarrow as pa
        from pyarrow import parquet

        pending = self._pending
        self._pending = []
        flat = torch.cat([measurement.values.reshape(-1) for measurement in pending]).cpu()
        values = torch.split(flat, [measurement.values.numel() for measurement in pending])
        tables = [
            pa.table(measurement.make_columns(own))
            for measurement, own in zip(pending, values, strict=True)
        ]
        self._folder.mkdir(parents=True, exist_ok=True)
        last = pending[-1].iteration
        unfinished = self._folder / f".{last}"
        parquet.write_table(pa.concat_tables(tables, promote_options="default"), unfinished)
        unfinished.replace(self._folder / f"{last:010d}.parquet")


def drop_files_after(iteration: int, folders: Iterable[Path]) -> None:
    """Delete the files that folders have of later iterations."""
    for folder in folders:
        for file in folder.glob("*.parquet"):
            if int(file.stem) > iteration:
                file.unlink()

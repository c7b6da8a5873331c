"""The curves that trackers draw, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hooks.parts.logs.readings import learning_rates, phase_metrics, present_row, read_numbers
from hooks.parts.logs.window_statistics import Statistic, Window, Windows
from hooks.state import State


class Curves(Windows):
    """The curves of one tracker. Runs on the ranks of the tracker, without communication.

    A point of training holds the mean of `train/loss`, gradient norms and times (`perf/...`) over a window, and the
    newest value of each other numeric column: `train/lr`, sizes as `memory/...`. It also holds new mappings of tensors
    in `state.info`, such as `activations/<layer>/mean`. Metrics keep their names, except that a phase's mean
    `train/loss` is `train/phase_loss`. Tensors are read in one transfer.
    """

    def __init__(self, window: Window, statistics: Mapping[str, Statistic]) -> None:
        super().__init__(window, statistics)
        self._drawn: dict[str, Mapping[str, Tensor]] = {}

    def point(self, state: State) -> dict[str, float]:
        """Return a point in an iteration of training."""
        return self._values_at(state, present_row(state))

    def rest(self, state: State) -> dict[str, float]:
        """Return a last point of training at the end of its phase, if iterations are left for it."""
        return self._values_at(state, {}) if state.phase == "train" and self.unwritten() else {}

    def metrics(self, state: State) -> dict[str, float]:
        """Return the metrics of the phase that ended."""
        return rename_metrics(read_numbers(phase_metrics(state)))

    def reported(self, state: State, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return what hooks added to a report, such as `train/samples_per_s`."""
        added = {name: value for name, value in metrics.items() if "/" in name and name not in state.metrics}
        return rename_metrics(read_numbers(added))

    def _values_at(self, state: State, row: Mapping[str, Any]) -> dict[str, float]:
        values = {**learning_rates(state), **self.look(row)}
        return {**{_curve(column): value for column, value in values.items()}, **self._new_info(state)}

    def _new_info(self, state: State) -> dict[str, float]:
        drawable = {name: values for name, values in state.info.items() if _is_drawable(values)}
        new = {name: values for name, values in drawable.items() if self._drawn.get(name) is not values}
        self._drawn |= new
        return read_numbers({f"{name}/{key}": value for name, values in new.items() for key, value in values.items()})


def rename_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics by the names of their curves."""
    return {"train/phase_loss" if name == "train/loss" else name: value for name, value in metrics.items()}


def _is_drawable(values: Any) -> bool:
    return isinstance(values, Mapping) and isinstance(next(iter(values.values()), None), Tensor)


def _curve(column: str) -> str:
    if "/" in column:
        return column
    if column.endswith("_s"):
        return f"perf/{column}"
    if column.endswith("_bytes") or column == "cuda_alloc_retries":
        return f"memory/{column}"
    return f"train/{column}"

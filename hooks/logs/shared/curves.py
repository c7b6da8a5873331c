"""The curves that trackers draw."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hooks.interval import at_interval
from hooks.logs.shared.readings import (
    get_learning_rates,
    make_current_row,
    read_numbers,
    select_phase_metrics,
)
from hooks.logs.shared.window_logger import WindowLogger
from hooks.metrics.names import REPORT_ENTRIES
from hooks.state import State


@dataclass
class CurveLogger(WindowLogger, ABC):
    """Base of hooks that draw curves.

    A point of training has the means of `train/loss`, gradient norms and times (`perf/...`) over a
    window, and the last value of each other numeric column: `train/lr`, sizes as `memory/...`.
    Peaks of memory are those since the last point. It also has new mappings of tensors in
    `state.info`, such as `activations/<layer>/mean`. Metrics keep their names, except that a
    phase's mean `train/loss` is `train/phase_loss`. Tensors are read in one transfer.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drawn_info: dict[str, Mapping[str, Tensor]] = {}

    @abstractmethod
    def draw(self, state: State, points: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        """Draw points of training, and metrics, at the current position."""

    def is_point_due(self, state: State) -> bool:
        """Return whether training has a point here; if not, the next one has its iterations too."""
        return True

    @at_interval("every")
    def on_step(self, state: State) -> None:
        if state.phase == "train":
            self.draw(state, self._make_point(state, make_current_row(state)), {})

    def on_phase_end(self, state: State) -> None:
        points = {}
        if state.phase == "train" and self._windows.has_changed():
            points = self._make_point(state, {})
        self.draw(state, points, _rename_metrics(select_phase_metrics(state)))

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        """Draw the metrics that hooks added to a report, such as `train/samples_per_s`."""
        added = {
            name: value
            for name, value in metrics.items()
            if name not in REPORT_ENTRIES and name not in state.metrics
        }
        self.draw(state, {}, _rename_metrics(added))

    def _make_point(self, state: State, row: Mapping[str, Any]) -> dict[str, float]:
        """Return a point with the iterations since the last one, and the current row if it is not
        closed yet; empty if no point is due."""
        if not self.is_point_due(state):
            self._windows.update(row)
            return {}
        values = {**get_learning_rates(state), **self._windows.summarize(row)}
        point = {_name_curve(column): value for column, value in values.items()}
        return {**point, **self._read_new_info(state)}

    def _read_new_info(self, state: State) -> dict[str, float]:
        """Return the numbers of the mappings of tensors that are new in `state.info`."""
        new: dict[str, Any] = {}
        for name, values in state.info.items():
            if not _holds_tensors(values) or self._drawn_info.get(name) is values:
                continue
            self._drawn_info[name] = values
            for key, value in values.items():
                new[f"{name}/{key}"] = value
        return read_numbers(new)


def _holds_tensors(values: Any) -> bool:
    return isinstance(values, Mapping) and isinstance(next(iter(values.values()), None), Tensor)


def _rename_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers, by the names of their curves."""
    numbers = read_numbers(metrics)
    return {
        "train/phase_loss" if name == "train/loss" else name: value
        for name, value in numbers.items()
    }


def _name_curve(column: str) -> str:
    if "/" in column:
        return column
    if column.endswith("_s"):
        return f"perf/{column}"
    if column.endswith("_bytes") or column == "cuda_alloc_retries":
        return f"memory/{column}"
    return f"train/{column}"

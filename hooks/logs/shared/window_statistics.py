"""Statistics of recorded columns over windows of iterations, and the curves that trackers draw of
them."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, islice
from operator import add
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge
from torch import Tensor

from hooks.hook import Hook, Priority, Ranks
from hooks.interval import Interval, Units, at_interval
from hooks.logs.shared.readings import (
    current_row,
    learning_rates,
    phase_metrics,
    read,
    read_numbers,
)
from hooks.state import RECENT, Recent, State

Method = Literal["mean", "median", "min", "max", "current"]
Window = Annotated[int, Ge(1)] | Literal["line", "epoch", "global"]
"""A number of iterations that recorded the column; `line` is since the last line, `global` the
whole run."""
LookBack = Annotated[Interval, Units(("iterations",), ge=1, le=RECENT)]
"""An interval after which a hook reads the rows since the last time."""
POSITION_COLUMNS = frozenset({"phase", "epoch", "iteration", "step", "samples", "batch_size"})
"""Columns with the position of a row, which have no statistics."""
_NO_ROW: Mapping[str, Any] = {}
_AVERAGED = re.compile(r"loss|time|_s$|grad_norm")
_METHODS: dict[str, Callable[[Sequence[float]], Any]] = {
    # Unlike fsum, which refuses inf - inf and an overflow.
    "mean": lambda values: sum(values) / len(values),
    "median": np.median,
    "min": np.min,
    "max": np.max,
}


@dataclass(frozen=True)
class Statistic:
    """A statistic of one column over a window. Source: MMEngine LogProcessor's `custom_cfg`."""

    column: str
    """Recorded column, such as `loss` or `step_s`."""
    method: Method = "mean"
    """Statistic of the values; NaN if one of them is NaN."""
    window: Window = 10
    """Iterations of the phase that recorded the column: a number, `line` (since the last line or
    point), `epoch`, or `global` (the whole run). A validation is an epoch of its own."""

    def __post_init__(self) -> None:
        if self.column in POSITION_COLUMNS:
            raise ValueError(
                f"{self.column} is a row's position, which has no statistics; name another column"
            )
        if self.method == "median" and self.window == "global":
            raise ValueError(
                f"the median of {self.column} needs a window: write window: epoch, or a number"
            )


@dataclass
class WindowLogger(Hook):
    """Base of hooks that log means of columns over windows. Runs on the master."""

    every: LookBack = Interval(50, "iterations")
    """Iterations between two lines or points; the end of a phase adds one."""
    window: Window = "line"
    """Iterations to average loss, times and gradient norms: a number, `line` (since the last),
    `epoch` or `global`."""
    statistics: dict[str, Statistic] = field(default_factory=dict)
    """Additional statistics by name, such as
    `slowest: {column: step_s, method: max, window: epoch}`."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.BELOW_NORMAL
    ranks: ClassVar[Ranks] = Ranks.MASTER
    state_fields: ClassVar[tuple[str, ...]] = ("_windows",)

    def __post_init__(self) -> None:
        self._windows = Windows(self.window, self.statistics)

    def on_phase_start(self, state: State) -> None:
        self._windows.start_phase(state)


class Windows:
    """Statistics of one logger's columns. No communication.

    Columns whose names contain `loss`, `time` or `grad_norm`, or end in `_s`, are averaged over
    `window`. Others have their last value. `statistics` adds more by name, in place of a column of
    that name. `columns` limits the columns.

    To count each value once, call `start_phase` when a phase starts, `update` or `summarize` at
    most RECENT iterations apart, and `summarize` when the phase ends. Columns that a row gets when
    it is closed, such as `step_s`, count in the next call. Times that the device has not measured
    yet are left out. One transfer reads all tensors, and waits.
    """

    def __init__(
        self,
        window: Window,
        statistics: Mapping[str, Statistic] | None = None,
        columns: Collection[str] | None = None,
    ) -> None:
        self._window, self._columns = window, columns
        self._statistics = dict(statistics or {})
        self._names: dict[str, tuple[str, ...]] = {}
        for name, statistic in self._statistics.items():
            column = statistic.column
            itself = () if column in self._statistics else (column,)
            self._names[column] = (*self._names.get(column, itself), name)
        windows = [window, *(statistic.window for statistic in self._statistics.values())]
        lengths = [length for length in windows if isinstance(length, int)]
        self._most = max(lengths) if len(lengths) == len(windows) else None
        """Number of values that is enough for each window; None if a window has no length."""
        self._values: dict[str, dict[str, _Values]] = {}
        self._phase = ""
        self._epoch = -1
        self._recent = Recent()
        self._read_rows = 0
        """Number of rows at the last update."""
        self._read_early: frozenset[str] | None = None
        """Columns that were read from the row after these before it was closed."""
        self._changed: set[str] = set()
        """Statistics with new values since the last summary."""

    def start_phase(self, state: State) -> None:
        """Begin a phase. Windows over training iterations continue."""
        self._phase, self._recent = state.phase, state.recent
        self._read_rows, self._read_early = state.recent.total, None
        is_new_epoch = state.phase != "train" or state.epoch != self._epoch
        for values in self._values.get(state.phase, {}).values():
            if (is_new_epoch and values.window == "epoch") or (
                state.phase != "train" and values.window != "global"
            ):
                values.clear()
        if state.phase == "train":
            self._epoch = state.epoch

    def update(self, row: Mapping[str, Any] = _NO_ROW) -> None:
        """Read the rows since the last update, and the row of the current iteration so far."""
        columns = self._read_closed_rows()
        if row:
            for column in self._select(row):
                if self._read_early is None or column not in self._read_early:
                    columns.setdefault(column, []).append(row[column])
            self._read_early = frozenset(row)
        columns = {
            column: [value for value in values if value is not None]
            for column, values in columns.items()
        }
        numbers = iter(read([*chain.from_iterable(columns.values())]))
        for column, values in columns.items():
            self._add(
                column, [number for number in islice(numbers, len(values)) if number is not None]
            )

    def summarize(self, row: Mapping[str, Any] = _NO_ROW) -> dict[str, float]:
        """Return the statistics by name after an update, and begin a new line."""
        self.update(row)
        phase_values = self._values.get(self._phase, {})
        statistics = {
            name: values.compute()
            for name, values in phase_values.items()
            if values.count and (name in self._changed or name in self._statistics)
        }
        self._changed.clear()
        for values in phase_values.values():
            if values.window == "line":
                values.clear()
        return statistics

    def has_changed(self) -> bool:
        """Return whether the phase has iterations that are in no summary."""
        return bool(self._changed) or self._recent.total - self._read_rows > (
            self._read_early is not None
        )

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers, at most as many as the windows are long."""
        self.update()
        phases = {
            phase: {
                name: {**vars(values), "kept": [*values.kept]}
                for name, values in phase_values.items()
            }
            for phase, phase_values in self._values.items()
        }
        return {"epoch": self._epoch, "changed": sorted(self._changed), "windows": phases}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the windows; a statistic whose definition has changed starts empty."""
        self._epoch, self._changed = state["epoch"], {*state["changed"]}
        for phase, phase_values in state["windows"].items():
            for name, kept in phase_values.items():
                values, saved = self._find_values(phase, name, name), _Values(**kept)
                if (saved.method, saved.window) == (values.method, values.window):
                    self._values[phase][name] = saved

    def _read_closed_rows(self) -> dict[str, list[Any]]:
        """Return the values of the rows since the last update that were not read early."""
        total = self._recent.total
        unread, self._read_rows = total - self._read_rows, total
        if not unread:
            return {}
        read_early, self._read_early = self._read_early or frozenset(), None
        closed = self._recent.columns(unread, names=self._columns, most=self._most)
        columns = {column: closed[column] for column in self._select(closed)}
        for column in read_early & columns.keys():
            if len(columns[column]) == unread:
                del columns[column][0]
        return columns

    def _select(self, columns: Collection[str]) -> list[str]:
        """Return the columns that have statistics, in their order."""
        limit = self._columns
        return [
            column
            for column in columns
            if column not in POSITION_COLUMNS and (limit is None or column in limit)
        ]

    def _add(self, column: str, numbers: Sequence[float]) -> None:
        if not numbers:
            return
        for name in self._names.get(column, (column,)):
            self._find_values(self._phase, name, column).extend(numbers)
            self._changed.add(name)

    def _find_values(self, phase: str, name: str, column: str) -> "_Values":
        phase_values = self._values.setdefault(phase, {})
        if name not in phase_values:
            default = Statistic(
                column, "mean" if _AVERAGED.search(column) else "current", self._window
            )
            statistic = self._statistics.get(name, default)
            phase_values[name] = _Values(statistic.method, statistic.window)
        return phase_values[name]


@dataclass
class _Values:
    """Values of a window, or their sum, minimum or maximum if that is enough."""

    method: Method
    window: Window
    count: int = 0
    running: float = 0.0
    kept: list[float] = field(default_factory=list)

    @property
    def _keeps_values(self) -> bool:
        return self.method != "current" and (
            isinstance(self.window, int) or self.method == "median"
        )

    def clear(self) -> None:
        self.count, self.running, self.kept = 0, 0.0, []

    def extend(self, values: Sequence[float]) -> None:
        if self._keeps_values:
            self.kept.extend(values)
            if isinstance(self.window, int):
                del self.kept[: -self.window]
        elif self.method == "mean":
            # One by one, so that the sum does not depend on how often the rows are read, such as
            # for a checkpoint.
            self.running = reduce(add, values, self.running)
        elif self.method == "current":
            self.running = values[-1]
        else:
            before = (self.running,) if self.count else ()
            self.running = float(_METHODS[self.method]((*before, *values)))
        self.count += len(values)

    def compute(self) -> float:
        if self._keeps_values:
            return float(_METHODS[self.method](self.kept))
        return self.running / self.count if self.method == "mean" else self.running


@dataclass
class CurveLogger(WindowLogger, ABC):
    """Base of hooks that draw curves.

    A point of training has the means of `train/loss`, gradient norms and times (`perf/...`) over a
    window, and the last value of each other numeric column: `train/lr`, sizes as `memory/...`. It
    also has new mappings of tensors in `state.info`, such as `activations/<layer>/mean`. Metrics
    keep their names, except that a phase's mean `train/loss` is `train/phase_loss`. Tensors are
    read in one transfer.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drawn_info: dict[str, Mapping[str, Tensor]] = {}

    @abstractmethod
    def draw(self, state: State, points: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        """Draw points of training, and metrics, at the current position."""

    @at_interval("every")
    def on_step(self, state: State) -> None:
        if state.phase == "train":
            self.draw(state, self.make_point(state, current_row(state)), {})

    def on_phase_end(self, state: State) -> None:
        is_unfinished = state.phase == "train" and self._windows.has_changed()
        self.draw(
            state,
            self.make_point(state, {}) if is_unfinished else {},
            _rename_metrics(phase_metrics(state)),
        )

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        """Draw the metrics that hooks added to a report, such as `train/samples_per_s`."""
        added = {
            name: value
            for name, value in metrics.items()
            if "/" in name and name not in state.metrics
        }
        self.draw(state, {}, _rename_metrics(added))

    def make_point(self, state: State, row: Mapping[str, Any]) -> dict[str, float]:
        """Return a point with the iterations since the last one, and the current row if it is not
        closed yet."""
        values = {**learning_rates(state), **self._windows.summarize(row)}
        return {
            **{_curve(column): value for column, value in values.items()},
            **self._new_info(state),
        }

    def _new_info(self, state: State) -> dict[str, float]:
        drawable = {
            name: values
            for name, values in state.info.items()
            if isinstance(values, Mapping) and isinstance(next(iter(values.values()), None), Tensor)
        }
        new = {
            name: values
            for name, values in drawable.items()
            if self._drawn_info.get(name) is not values
        }
        self._drawn_info |= new
        return read_numbers(
            {
                f"{name}/{key}": value
                for name, values in new.items()
                for key, value in values.items()
            }
        )


def _rename_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers, by the names of their curves."""
    numbers = read_numbers(metrics)
    return {
        "train/phase_loss" if name == "train/loss" else name: value
        for name, value in numbers.items()
    }


def _curve(column: str) -> str:
    if "/" in column:
        return column
    if column.endswith("_s"):
        return f"perf/{column}"
    if column.endswith("_bytes") or column == "cuda_alloc_retries":
        return f"memory/{column}"
    return f"train/{column}"

"""Statistics of recorded columns over windows, and the curves that trackers draw of them."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge
from torch import Tensor

from hooks.hook import Priority, Ranks
from hooks.interval import Interval, Units
from hooks.parts.logs.readings import learning_rates, phase_metrics, present_row, read, read_numbers
from hooks.recent_rows import RECENT, KeptRows, Recent
from hooks.state import State

Method = Literal["mean", "median", "min", "max", "current"]
Window = Annotated[int, Ge(1)] | Literal["line", "epoch", "global"]
"""A number of iterations; `line` is since the last line, `global` the whole run."""
LookBack = Annotated[Interval, Units(("iterations",), ge=1, le=RECENT)]
"""An interval after which a hook reads the rows since the last time."""
POSITION_COLUMNS = frozenset({"phase", "epoch", "iteration", "step", "samples", "batch_size"})
"""Columns that hold the position of a row, and are not averaged."""
_NO_ROW: Mapping[str, Any] = {}
_AVERAGED = re.compile(r"loss|time|_s$|grad_norm")
_METHODS: dict[str, Callable[[Sequence[float]], Any]] = {
    "mean": fmean,
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
    """Iterations of the phase: a number, `line` (since the last line or point), `epoch`, or `global` (the whole run). A
    validation is an epoch of its own."""

    def __post_init__(self) -> None:
        if self.method == "median" and self.window == "global":
            raise ValueError(f"the median of {self.column} needs a window: write window: epoch, or a number")


@dataclass
class WindowLogger:
    """The base of hooks that log means of columns over windows. Runs on the master."""

    every: LookBack = Interval(50, "iterations")
    """Iterations between two lines or points; another one comes at the end of a phase."""
    window: Window = "line"
    """Iterations for the means of loss, times and gradient norms: `line` (since the last line or point), a number,
    `epoch` or `global`."""
    statistics: dict[str, Statistic] = field(default_factory=dict)
    """Further statistics by name, such as `slowest: {column: step_s, method: max, window: epoch}`."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.BELOW_NORMAL
    ranks: ClassVar[Ranks] = Ranks.MASTER


class Windows:
    """The statistics of one logger. Runs on the ranks of the logger, without communication.

    Columns that match `loss`, `time`, `_s` at the end or `grad_norm` are averaged over `window`; of others the newest
    value since the last look counts. `statistics` adds more by name, in place of a column of that name. `columns`
    limits the columns.

    Each value counts once: call `start_phase` when a phase starts, `look` or `catch_up` at most RECENT iterations
    apart, and `look` when the phase ends. Columns that a row gets when it is closed, such as `step_s`, come with the
    next look. Times that the device has not measured yet are left out. A look reads tensors in one transfer, which
    waits for the device.
    """

    def __init__(
        self, window: Window, statistics: Mapping[str, Statistic] | None = None, columns: Collection[str] | None = None
    ) -> None:
        self._window, self._columns = window, columns
        self._statistics = dict(statistics or {})
        self._names: dict[str, tuple[str, ...]] = {}
        for name, statistic in self._statistics.items():
            column = statistic.column
            itself = () if column in self._statistics else (column,)
            self._names[column] = (*self._names.get(column, itself), name)
        self._values: dict[str, dict[str, _Values]] = {}
        self._phase = ""
        self._epoch = -1
        self._recent: Recent = KeptRows()
        self._seen = 0
        """Number of rows at the last look."""
        self._taken: frozenset[str] | None = None
        """Columns taken from a row before it was closed: the first row after the last look."""
        self._fresh: set[str] = set()

    def start_phase(self, state: State) -> None:
        """Begin a phase. Windows over iterations of training continue."""
        self._phase, self._recent = state.phase, state.recent
        self._seen, self._taken = state.recent.total, None
        is_new_epoch = state.phase != "train" or state.epoch != self._epoch
        for values in self._values.get(state.phase, {}).values():
            if (is_new_epoch and values.window == "epoch") or (state.phase != "train" and values.window != "global"):
                values.clear()
        if state.phase == "train":
            self._epoch = state.epoch

    def catch_up(self, present: Mapping[str, Any] = _NO_ROW) -> None:
        """Read the rows since the last look, and the present one so far, without ending a line."""
        columns = self._read_closed_rows()
        if present:
            for column in self._select(present):
                if self._taken is None or column not in self._taken:
                    columns.setdefault(column, []).append(present[column])
            self._taken = frozenset(present)
        columns = {column: [value for value in values if value is not None] for column, values in columns.items()}
        numbers = iter(read([*chain.from_iterable(columns.values())]))
        for column, values in columns.items():
            self._add(column, [number for number in islice(numbers, len(values)) if number is not None])

    def look(self, present: Mapping[str, Any] = _NO_ROW) -> dict[str, float]:
        """Return the statistics by name, and begin a new line. `present` is the row of the present iteration."""
        self.catch_up(present)
        of_phase = self._values.get(self._phase, {})
        statistics = {
            name: values.value()
            for name, values in of_phase.items()
            if values.count and (name in self._fresh or name in self._statistics)
        }
        self._fresh.clear()
        for values in of_phase.values():
            if values.window == "line":
                values.clear()
        return statistics

    def unwritten(self) -> bool:
        """Return whether the phase has iterations that no look has shown."""
        return bool(self._fresh) or self._recent.total - self._seen > (self._taken is not None)

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers, at most as many as the windows are long."""
        self.catch_up()
        phases = {
            phase: {name: values.state_dict() for name, values in of_phase.items()}
            for phase, of_phase in self._values.items()
        }
        return {"epoch": self._epoch, "windows": phases}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the windows; a statistic whose definition has changed starts empty."""
        self._epoch = state["epoch"]
        for phase, of_phase in state["windows"].items():
            for name, kept in of_phase.items():
                self._values_of(phase, name, name).load_state_dict(kept)

    def _read_closed_rows(self) -> dict[str, list[Any]]:
        """Return the unread columns of the rows since the last look."""
        total = self._recent.total
        unseen, self._seen = total - self._seen, total
        if not unseen:
            return {}
        taken, self._taken = self._taken or frozenset(), None
        closed = self._recent.columns(unseen, names=self._columns)
        return {column: closed[column][column in taken :] for column in self._select(closed)}

    def _select(self, columns: Collection[str]) -> list[str]:
        """Return the columns that count, in their order."""
        limit = self._columns
        return [column for column in columns if column not in POSITION_COLUMNS and (limit is None or column in limit)]

    def _add(self, column: str, numbers: Sequence[float]) -> None:
        if not numbers:
            return
        for name in self._names.get(column, (column,)):
            self._values_of(self._phase, name, column).extend(numbers)
            self._fresh.add(name)

    def _values_of(self, phase: str, name: str, column: str) -> _Values:
        of_phase = self._values.setdefault(phase, {})
        if name not in of_phase:
            default = Statistic(column, "mean" if _AVERAGED.search(column) else "current", self._window)
            statistic = self._statistics.get(name, default)
            of_phase[name] = _Values(statistic.method, statistic.window)
        return of_phase[name]


@dataclass
class _Values:
    """The values of a window, or their sum, minimum or maximum if that suffices."""

    method: Method
    window: Window
    count: int = 0
    _kept: deque[float] | None = None
    _running: float = 0.0

    def __post_init__(self) -> None:
        if self.method != "current" and (isinstance(self.window, int) or self.method == "median"):
            self._kept = deque(maxlen=self.window if isinstance(self.window, int) else None)

    def clear(self) -> None:
        self.count, self._running = 0, 0.0
        if self._kept is not None:
            self._kept.clear()

    def extend(self, values: Sequence[float]) -> None:
        if self._kept is not None:
            self._kept.extend(values)
        elif self.method == "mean":
            self._running += math.fsum(values)
        elif self.method == "current":
            self._running = values[-1]
        else:
            before = (self._running,) if self.count else ()
            self._running = float(_METHODS[self.method]((*before, *values)))
        self.count += len(values)

    def value(self) -> float:
        if self._kept is not None:
            return float(_METHODS[self.method](self._kept))
        return self._running / self.count if self.method == "mean" else self._running

    def state_dict(self) -> dict[str, Any]:
        kept = list(self._kept or ())
        return {"method": self.method, "size": self.window, "count": self.count, "running": self._running, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (self.method, self.window) != (state["method"], state["size"]):
            return
        self.count, self._running = state["count"], state["running"]
        if self._kept is not None:
            self._kept.extend(state["kept"])


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

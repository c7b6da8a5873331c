"""Statistics of what was recorded, over windows: kept by looking back now and then, not at every iteration."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from hooks.interval import Interval, Units
from hooks.parts.logs.readings import read
from hooks.recent_rows import RECENT, KeptRows, Recent
from hooks.state import State

Method = Literal["mean", "median", "min", "max", "current"]
Size = Annotated[int, Ge(1)] | Literal["line", "epoch", "global"]
"""A number of iterations; `line` is since what was written last, `global` the whole run."""

LookBack = Annotated[Interval, Units(("iterations",), ge=1, le=RECENT)]
"""An interval after which a hook looks back on the rows since."""

POSITION_COLUMNS = frozenset({"phase", "epoch", "iteration", "step", "samples", "batch_size"})
"""Columns that say where a row belongs, which are never averaged."""
_NO_ROW: Mapping[str, Any] = {}
_AVERAGED = re.compile(r"loss|time|_s$|grad_norm")


@dataclass(frozen=True)
class Statistic:
    """A number made of one column's values over a window. Source: MMEngine LogProcessor's `custom_cfg`."""

    column: str
    """The recorded column, such as `loss` or `step_s`."""
    method: Method = "mean"
    """What is made of the values; not-a-number among them makes it not-a-number."""
    window: Size = 10
    """Iterations of the phase it goes over: their number, `line` (since the last line or point), `epoch` or `global`
    (the whole run, also through a resume). A validation is an epoch of its own."""

    def __post_init__(self) -> None:
        if self.method == "median" and self.window == "global":
            raise ValueError(
                f"the median of {self.column} over the whole run would keep every value; choose window: epoch or a"
                " number"
            )


class Windows:
    """The statistics of one logger. Runs in the worker, on the ranks that run the logger; no communication.

    Columns that match `loss`, `time`, `_s` at the end or `grad_norm` are means over `size`; others are current: the
    newest value since the last look. `statistics` adds others by name; one with a column's own name stands in for it.
    Only `columns` are looked at, where they are given.

    Every value counts once, whenever it is looked at: call `start_phase` as each phase starts, `look` or `catch_up` at
    most RECENT iterations apart, and `look` as the phase ends. Columns that a row gets as it is closed, such as
    `step_s`, are taken at the next look, and so is what the device has not measured yet. A look reads tensors in one
    transfer, which waits for the device.
    """

    def __init__(
        self, size: Size, statistics: Mapping[str, Statistic] | None = None, columns: Collection[str] | None = None
    ) -> None:
        self._size, self._columns = size, columns
        self._statistics = dict(statistics or {})
        self._reach = _reach(size, *(statistic.window for statistic in self._statistics.values()))
        self._names: dict[str, tuple[str, ...]] = {}
        for name, statistic in self._statistics.items():
            column = statistic.column
            itself = () if column in self._statistics else (column,)
            self._names[column] = (*self._names.get(column, itself), name)
        self._windows: dict[str, dict[str, _Window]] = {}
        self._phase = ""
        self._epoch = -1
        self._recent: Recent = KeptRows()
        self._seen = 0
        """How many rows there had been at the last look."""
        self._taken: frozenset[str] | None = None
        """The columns that were taken of a row before it was closed: the first that comes after the last one seen."""
        self._late: dict[str, list[Any]] = {}
        self._fresh: set[str] = set()

    def start_phase(self, state: State) -> None:
        """A phase begins: what came before it is not looked at. Windows over iterations of training go on."""
        self._phase, self._recent, self._late = state.phase, state.recent, {}
        self._seen, self._taken = state.recent.total, None
        fresh_epoch = state.phase != "train" or state.epoch != self._epoch
        for window in self._windows.get(state.phase, {}).values():
            if (fresh_epoch and window.size == "epoch") or (state.phase != "train" and window.size != "global"):
                window.clear()
        if state.phase == "train":
            self._epoch = state.epoch

    def catch_up(self, present: Mapping[str, Any] = _NO_ROW) -> None:
        """Takes what there is since the last look, without ending a line: rows that were closed, and what the present
        one has so far."""
        columns = self._closed()
        if present:
            for column in self._wanted(present):
                if self._taken is None or column not in self._taken:
                    columns.setdefault(column, []).append(present[column])
            self._taken = frozenset(present)
        columns = {column: [value for value in values if value is not None] for column, values in columns.items()}
        numbers = iter(read([*chain.from_iterable(columns.values())]))
        for column, values in columns.items():
            self._add(column, values, [*islice(numbers, len(values))])

    def look(self, present: Mapping[str, Any] = _NO_ROW) -> dict[str, float]:
        """The statistics by name, in the order in which columns were first recorded; a line ends here. `present` is the
        row of the iteration under way, where there is one."""
        self.catch_up(present)
        windows = self._windows.get(self._phase, {})
        values = {
            name: window.value()
            for name, window in windows.items()
            if window.count and (name in self._fresh or name in self._statistics)
        }
        self._fresh.clear()
        for window in windows.values():
            if window.size == "line":
                window.clear()
        return values

    def unwritten(self) -> bool:
        """Whether there are iterations of this phase that no look has shown."""
        if self._fresh:
            return True
        return self._recent.total - self._seen > (self._taken is not None)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers: never more than the windows are long. Looks at what is closed, so that nothing is lost."""
        self.catch_up()
        phases = {
            phase: {name: window.state_dict() for name, window in windows.items()}
            for phase, windows in self._windows.items()
        }
        return {"epoch": self._epoch, "windows": phases}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; a statistic that is another one now begins anew."""
        self._epoch = state["epoch"]
        for phase, windows in state["windows"].items():
            for name, kept in windows.items():
                self._window(phase, name, name).load_state_dict(kept)

    def _closed(self) -> dict[str, list[Any]]:
        """What the rows that were closed since the last look still have to tell, and what came too late for it."""
        columns, self._late = self._late, {}
        total = self._recent.total
        unseen, self._seen = total - self._seen, total
        if not unseen:
            return columns
        taken, self._taken = self._taken or frozenset(), None
        if self._reach is not None and unseen > self._reach:
            # Those before would fall out of every window; the one that was taken in part is among them.
            unseen, taken = self._reach, frozenset()
        closed = self._recent.columns(unseen, names=self._columns)
        for column in self._wanted(closed):
            columns.setdefault(column, []).extend(closed[column][column in taken :])
        return columns

    def _wanted(self, columns: Collection[str]) -> list[str]:
        """Those of the columns that are looked at, in their order."""
        return [
            column
            for column in columns
            if column not in POSITION_COLUMNS and (self._columns is None or column in self._columns)
        ]

    def _add(self, column: str, values: Sequence[Any], numbers: Sequence[float | None]) -> None:
        there = [number for number in numbers if number is not None]
        if len(there) < len(values):
            late = [
                value
                for value, number in zip(values, numbers, strict=True)
                if number is None and hasattr(value, "resolve")
            ]
            self._late |= {column: late} if late else {}
        if not there:
            return
        for name in self._names.get(column, (column,)):
            self._window(self._phase, name, column).extend(there)
            self._fresh.add(name)

    def _window(self, phase: str, name: str, column: str) -> _Window:
        windows = self._windows.setdefault(phase, {})
        if name not in windows:
            averaged = Statistic(column, "mean" if _AVERAGED.search(column) else "current", self._size)
            statistic = self._statistics.get(name, averaged)
            windows[name] = _Window(statistic.method, statistic.window)
        return windows[name]


def _reach(*sizes: Size) -> int | None:
    """How many rows back values still count; None where all of them do."""
    numbers = [size for size in sizes if isinstance(size, int)]
    return max(numbers) if len(numbers) == len(sizes) else None


@dataclass
class _Window:
    """The values of a window, or what is needed of them."""

    method: Method
    size: Size
    count: int = 0
    _kept: deque[float] | None = None
    _running: float = 0.0

    def __post_init__(self) -> None:
        if self.method != "current" and (isinstance(self.size, int) or self.method == "median"):
            self._kept = deque(maxlen=self.size if isinstance(self.size, int) else None)

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
        kept = list(self._kept) if self._kept is not None else []
        return {"method": self.method, "size": self.size, "count": self.count, "running": self._running, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (self.method, self.size) != (state["method"], state["size"]):
            return
        self.count, self._running = state["count"], state["running"]
        if self._kept is not None:
            self._kept.extend(state["kept"])


_METHODS: dict[str, Callable[[Sequence[float]], Any]] = {
    "mean": fmean,
    "median": np.median,
    "min": np.min,
    "max": np.max,
}

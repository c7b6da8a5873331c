"""Statistics of recorded columns over windows of iterations."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from typing import Any

from hooks.logs.shared.readings import read
from hooks.logs.shared.statistic import Statistic, Window, WindowValues
from hooks.logs.shared.unread_rows import MEMORY_PEAK, UnreadRows
from hooks.state import State

_AVERAGED = re.compile(r"loss|time|_s$|grad_norm")
"""Columns whose default statistic is the mean."""


class Windows:
    """Statistics of one logger's columns. No communication.

    Columns whose names contain `loss`, `time` or `grad_norm`, or end in `_s`, are averaged over
    `window`. Peaks of memory have the largest value since the last summary, and others their last
    value. `statistics` adds more by name, in place of a column of that name. `columns` limits the
    columns.

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
        self._window = window
        self._statistics = dict(statistics or {})
        self._names: dict[str, tuple[str, ...]] = {}
        """Names of the statistics of a column, if there are others than its own."""
        for name, statistic in self._statistics.items():
            column = statistic.column
            itself = () if column in self._statistics else (column,)
            self._names[column] = (*self._names.get(column, itself), name)
        self._unread = UnreadRows(columns, self._find_longest_window())
        self._values: dict[str, dict[str, WindowValues]] = {}
        """Values of each statistic by phase and name."""
        self._phase = ""
        self._epoch = -1
        self._changed: set[str] = set()
        """Statistics with new values since the last summary."""

    def _find_longest_window(self) -> int | None:
        """Return the number of values that is enough for each window; None if one has no length."""
        windows = [self._window, *(statistic.window for statistic in self._statistics.values())]
        lengths = [length for length in windows if isinstance(length, int)]
        return max(lengths) if len(lengths) == len(windows) else None

    def start_phase(self, state: State) -> None:
        """Begin a phase. Windows over training iterations continue."""
        if self._unread.has_read_early:
            self.update()  # the columns that this row got when it was closed
        self._phase = state.phase
        self._unread.start_phase(state.recent)
        phase_values = self._values.get(state.phase, {}).values()
        if state.phase != "train":
            _clear(phase_values, lambda window: window != "global")
        elif state.epoch != self._epoch:
            _clear(phase_values, lambda window: window == "epoch")
            self._epoch = state.epoch

    def update(self, row: Mapping[str, Any] | None = None) -> None:
        """Read the rows since the last update, and the row of the current iteration so far."""
        columns = self._unread.take(row)
        numbers = iter(read(list(chain.from_iterable(columns.values()))))
        for column, values in columns.items():
            own = islice(numbers, len(values))
            self._add(column, [number for number in own if number is not None])

    def summarize(self, row: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the statistics by name after an update, and begin a new line."""
        self.update(row)
        phase_values = self._values.get(self._phase, {})
        statistics = {
            name: values.compute()
            for name, values in phase_values.items()
            if values.count and (name in self._changed or name in self._statistics)
        }
        self._changed.clear()
        _clear(phase_values.values(), lambda window: window == "line")
        return statistics

    @property
    def unread_rows(self) -> int:
        """Number of closed rows of the phase since the last update."""
        return self._unread.count

    def has_changed(self) -> bool:
        """Return whether the phase has iterations that are in no summary."""
        if self._changed:
            return True
        rows_read_early = 1 if self._unread.has_read_early else 0
        return self._unread.count > rows_read_early

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers, at most as many as the windows are long."""
        self.update()
        phases: dict[str, dict[str, Any]] = {}
        for phase, phase_values in self._values.items():
            phases[phase] = {name: asdict(values) for name, values in phase_values.items()}
        return {"epoch": self._epoch, "changed": sorted(self._changed), "windows": phases}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the windows; a statistic whose definition has changed starts empty."""
        self._epoch = state["epoch"]
        self._changed = set(state["changed"])
        for phase, phase_values in state["windows"].items():
            for name, kept in phase_values.items():
                values = self._find_values(phase, name, name)
                saved = WindowValues(**kept)
                if (saved.method, saved.window) == (values.method, values.window):
                    self._values[phase][name] = saved

    def _add(self, column: str, numbers: Sequence[float]) -> None:
        if not numbers:
            return
        for name in self._names.get(column, (column,)):
            self._find_values(self._phase, name, column).extend(numbers)
            self._changed.add(name)

    def _find_values(self, phase: str, name: str, column: str) -> WindowValues:
        phase_values = self._values.setdefault(phase, {})
        if name not in phase_values:
            statistic = self._statistics.get(name) or self._make_default(column)
            phase_values[name] = WindowValues(statistic.method, statistic.window)
        return phase_values[name]

    def _make_default(self, column: str) -> Statistic:
        """Return the statistic of a column that `statistics` does not name."""
        if MEMORY_PEAK.search(column):
            return Statistic(column, "max", "line")
        return Statistic(column, "mean" if _AVERAGED.search(column) else "current", self._window)


def _clear(phase_values: Iterable[WindowValues], applies: Callable[[Window], bool]) -> None:
    """Clear the values with the windows to which a condition applies."""
    for values in phase_values:
        if applies(values.window):
            values.clear()

"""Statistics of rows as metrics."""

import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar

import numpy as np
import torch.distributed as dist

from hooks.errors import SettingError
from hooks.hook import Hook, Priority
from hooks.interval import at_interval
from hooks.recent import RECENT
from hooks.state import State

logger = logging.getLogger("hookyard")

PREFIX = "stats/"
"""Prefix of the metrics: `stats/step_s/p95`."""


def _p95(values: Any) -> Any:
    with np.errstate(invalid="ignore"):  # interpolation gives NaN next to infinity
        quantile = np.quantile(values, 0.95)
    return np.quantile(values, 0.95, method="nearest") if np.isnan(quantile) else quantile


STATISTICS: dict[str, Callable[[Any], Any]] = {
    "min": np.min,
    "median": np.median,
    "mean": np.mean,
    "p95": _p95,
    "max": np.max,
    "sum": np.sum,
}
"""The statistics of a column, by name."""


_WITHOUT_STATISTICS = {
    **dict.fromkeys(("phase", "node"), "is text, which has no statistics"),
    "rank": "is the same in all rows of a rank",
}
"""Columns of the tables that have no statistics, and why."""


def split_statistic(written: str) -> tuple[str, str]:
    """Split `step_s/p95` in two; raises ValueError for anything else."""
    column, _, statistic = written.rpartition("/")
    if not column or "/" in column:
        raise ValueError(f"expected COLUMN/STATISTIC such as step_s/p95, got '{written}'")
    if column in _WITHOUT_STATISTICS:
        raise ValueError(f"no '{written}': {column} {_WITHOUT_STATISTICS[column]}")
    if statistic not in STATISTICS:
        near = get_close_matches(statistic.lower(), STATISTICS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"available: {', '.join(STATISTICS)}"
        raise ValueError(f"no statistic '{statistic}' in '{written}': {hint}")
    return column, statistic


@dataclass
class RowStats(Hook):
    """Report statistics of columns as metrics, across all ranks and the training iterations since
    the last report.

        row_stats: {report: [step_s/p95, cuda_peak_allocated_bytes/max]}

    Statistics are `min`, `median`, `mean`, `p95`, `max` and `sum`. A sweep with such a metric turns
    the hook on. Ignores empty and NaN values. Ranks exchange the values at each report.

    Metrics:
        * `stats/<column>/<statistic>`: The statistic, such as `stats/step_s/p95`.
    """

    report: list[str] = field(default_factory=list)
    """Statistics to report, as COLUMN/STATISTIC."""

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.VERY_HIGH
    collective: ClassVar[bool] = True
    reach: ClassVar[int] = RECENT // 2
    """Iterations after which the recent rows are read, before they are dropped."""

    def __post_init__(self) -> None:
        self._statistics = {name: split_statistic(name) for name in self.report}
        """Column and statistic of each entry of `report`."""
        self._values: dict[str, array[float]] = {}
        """Values of each column since the last report."""
        self._forget_values()
        self._last_iteration = 0
        self._unreported = set(self.report)
        """Statistics in no report of this process so far."""
        self._has_reported = False

    @at_interval("reach")
    def on_step(self, state: State) -> None:
        if state.phase == "train":
            self._look_back(state)

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train":
            self._look_back(state)

    def on_save(self, state: State, checkpoint: dict[str, Any]) -> None:
        self._look_back(state)

    def on_report(self, state: State, metrics: dict[str, Any]) -> None:
        self._look_back(state)
        columns = self._join_ranks(state)
        self._forget_values()
        self._has_reported = True
        for name, (column, statistic) in self._statistics.items():
            if len(columns[column]):
                metrics[PREFIX + name] = float(STATISTICS[statistic](columns[column]))
                self._unreported.discard(name)

    def on_end(self, state: State) -> None:
        if not (state.is_master and self._has_reported):
            return
        columns = state.recent.columns(RECENT, phase="train")
        for name in sorted(self._unreported):
            near = get_close_matches(self._statistics[name][0], columns, n=1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            logger.warning(
                "%s is in no report: no training row has a number in that column%s",
                PREFIX + name,
                hint,
            )

    def _forget_values(self) -> None:
        self._values = {column: array("d") for column, _ in self._statistics.values()}

    def _join_ranks(self, state: State) -> dict[str, np.ndarray]:
        """Return the values of all ranks by column, without NaN. Collective."""
        gathered: list[dict[str, array[float]]] = [self._values] * state.world_size
        if state.world_size > 1:
            dist.all_gather_object(gathered, self._values)
        joined = {}
        for column in self._values:
            values = np.concatenate([np.asarray(own[column]) for own in gathered])
            joined[column] = values[~np.isnan(values)]
        return joined

    def _look_back(self, state: State) -> None:
        """Read the training rows since the last call."""
        columns = state.recent.columns(RECENT, phase="train", names={"iteration", *self._values})
        iterations = columns.get("iteration", [])
        first = bisect_right(iterations, self._last_iteration)
        for column, values in self._values.items():
            values.extend(_read_numbers(column, columns.get(column, [])[first:]))
        if iterations:
            self._last_iteration = iterations[-1]

    def rank_state_dict(self) -> dict[str, Any]:
        return {
            "last_iteration": self._last_iteration,
            "values": {column: values.tolist() for column, values in self._values.items()},
        }

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._last_iteration = state["last_iteration"]
        for column in self._values:
            self._values[column] = array("d", state["values"].get(column, ()))


def _read_numbers(column: str, values: Sequence[Any]) -> list[float]:
    """Return the values that are not empty; raises SettingError for text."""
    numbers = []
    for value in values:
        if isinstance(value, str):
            raise SettingError(
                f"report: the column '{column}' has text, such as '{value}', which has no statistics"
            )
        if value is not None:
            measured = value.resolve() if hasattr(value, "resolve") else value
            numbers.append(float(measured))
    return numbers

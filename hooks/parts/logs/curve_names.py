"""What trackers draw, by the names of their curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hooks.parts.logs.readings import learning_rates, numbers, phase_metrics, under_way
from hooks.parts.logs.window_statistics import Size, Statistic, Windows
from hooks.state import State


class Curves(Windows):
    """What one tracker draws, from its windows. Runs in the worker, on the ranks that run the tracker; no
    communication.

    A point of training holds the mean of `train/loss`, of gradient norms and of times (`perf/...`) over a window, and
    the newest of every other numeric column: `train/lr`, sizes as `memory/...`. What a hook leaves in `state.info` as a
    mapping of tensors is in the next point under the mapping's name, such as `activations/<layer>/mean`. Metrics keep
    their names, except that a phase's own mean `train/loss` is `train/phase_loss`. Tensors are read in one transfer.
    """

    def __init__(self, window: Size, statistics: Mapping[str, Statistic]) -> None:
        super().__init__(window, statistics)
        self._drawn: dict[str, Mapping[str, Tensor]] = {}

    def point(self, state: State) -> dict[str, float]:
        """A point within an iteration of training."""
        return self._values(state, under_way(state))

    def rest(self, state: State) -> dict[str, float]:
        """A last point, as a phase ends: of the iterations of training that are in no point yet, if there are any."""
        return self._values(state, {}) if state.phase == "train" and self.unwritten() else {}

    def metrics(self, state: State) -> dict[str, float]:
        """The values of the phase that ended."""
        return named(numbers(phase_metrics(state)))

    def reported(self, state: State, metrics: Mapping[str, Any]) -> dict[str, float]:
        """What hooks have added to a report, such as `train/samples_per_s`."""
        return named(
            numbers({name: value for name, value in metrics.items() if "/" in name and name not in state.metrics})
        )

    def _values(self, state: State, row: Mapping[str, Any]) -> dict[str, float]:
        values = {**learning_rates(state), **self.look(row)}
        return {**{_curve(column): value for column, value in values.items()}, **self._info(state)}

    def _info(self, state: State) -> dict[str, float]:
        """What other hooks have put into `state.info` to be drawn since the last point."""
        fresh = {
            name: values
            for name, values in state.info.items()
            if _is_drawable(values) and self._drawn.get(name) is not values
        }
        self._drawn |= fresh
        return numbers({f"{name}/{key}": value for name, values in fresh.items() for key, value in values.items()})


def named(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics by the names of their curves."""
    return {"train/phase_loss" if name == "train/loss" else name: value for name, value in metrics.items()}


def _is_drawable(values: Any) -> bool:
    return isinstance(values, Mapping) and isinstance(next(iter(values.values()), None), Tensor)


def _curve(column: str) -> str:
    """Where a column of the row is drawn: by its unit, or under `train/`."""
    if "/" in column:
        return column
    if column.endswith("_s"):
        return f"perf/{column}"
    if column.endswith("_bytes") or column == "cuda_alloc_retries":
        return f"memory/{column}"
    return f"train/{column}"

"""The best checkpoints of a run: the best value of each monitored metric, and where it is stored."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hooks.errors import SettingError
from hooks.metrics.direction import Mode, choose_modes
from hooks.metrics.main_metric import choose_main_metric, list_val_metrics
from hooks.metrics.monitored import find_declared_modes
from hooks.metrics.names import explain_missing, find_phase, get_kind, list_known, list_phases
from hooks.state import State


@dataclass
class BestCheckpoint:
    """The best value of a metric so far, and its checkpoint."""

    metric: str
    mode: Mode
    score: float | None = None
    name: str | None = None

    def is_improved_by(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.score is None:
            return True
        return value > self.score if self.mode == "max" else value < self.score


class BestCheckpoints:
    """The best checkpoint of each monitored metric.

    Without metrics, or with `auto`, it monitors one that the first validation tells. A `mode` is a
    direction, or one per metric.
    """

    def __init__(
        self, metrics: str | Sequence[str] | None, mode: Mode | Sequence[Mode] | None
    ) -> None:
        names = [metrics] if isinstance(metrics, str) else list(metrics or [])
        if "auto" in names and len(names) > 1:
            raise ValueError(f"best is {names}: set either auto, or a list of metrics")
        self._mode = mode
        self._is_auto = names == ["auto"]
        self._should_choose_metric = self._is_auto or not names
        self._bests: dict[str, BestCheckpoint] = {}
        if not self._should_choose_metric:
            self._monitor(names)

    def _monitor(
        self,
        metrics: Sequence[str],
        declared: Mapping[str, str] | None = None,
        meters: Mapping[str, Mode] | None = None,
    ) -> None:
        modes = choose_modes(metrics, self._mode, declared, meters)
        self._bests = {metric: BestCheckpoint(metric, mode) for metric, mode in modes.items()}

    def list_names(self) -> list[str]:
        """Return the name of each metric's best checkpoint, if one is stored."""
        return [best.name for best in self._bests.values() if best.name is not None]

    def choose_metric(self, state: State) -> None:
        """Choose the validation metric to monitor, at the first validation; none if no direction is
        known and none is set."""
        if self._bests or not self._should_choose_metric or get_kind(state.phase) != "val":
            return
        if self._is_auto:
            metric: str | None = _find_first_val_metric(state)
        else:
            metric = choose_main_metric(state.metrics, state.config, state.meter_modes)
        if metric:
            self._monitor([metric], find_declared_modes(state.config), state.meter_modes)

    def find_improved(self, state: State) -> list[str]:
        """Return the metrics that have a new best value in this phase."""
        return [
            metric
            for metric, best in self._bests.items()
            if best.is_improved_by(_get_value(best, state))
        ]

    def update(self, metrics: Iterable[str], state: State) -> None:
        """Take the current values of metrics as their best."""
        for metric in metrics:
            self._bests[metric].score = state.metrics[metric]

    def mark(self, state: State, name: str, metrics: Iterable[str]) -> None:
        """Label a stored checkpoint as best for some metrics; for the first monitored metric also
        as `best`."""
        for metric in metrics:
            self._bests[metric].name = name
            labels = [self._label(metric)]
            if metric == next(iter(self._bests)):
                labels.append("best")
            if state.checkpoints is not None:
                state.checkpoints.mark(name, *labels, metric=metric)

    def _label(self, metric: str) -> str:
        """Return the label of a metric's best checkpoint, in which `-` stands for `/` and spaces if
        that is clear."""
        shortened = {known: re.sub(r"[/ ]+", "-", known) for known in self._bests}
        is_clear = list(shortened.values()).count(shortened[metric]) == 1
        return f"best-{shortened[metric] if is_clear else metric}"

    # Resuming

    def state_dict(self) -> list[dict[str, Any]]:
        return [asdict(best) for best in self._bests.values()]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]]) -> None:
        for best in (BestCheckpoint(**saved) for saved in state):
            if self._should_choose_metric and not self._bests:
                self._monitor([best.metric], {best.metric: best.mode})
            # A score is useless if its direction has changed.
            if best.metric in self._bests and self._bests[best.metric].mode == best.mode:
                self._bests[best.metric] = best

    def select_known(self, metrics: Iterable[str]) -> list[str]:
        """Return the metrics among some that are monitored."""
        return [metric for metric in metrics if metric in self._bests]

    def forget_scores(self, kept: Iterable[str]) -> None:
        """Discard scores and names, except those of some metrics."""
        for metric, best in self._bests.items():
            if metric not in kept:
                self._bests[metric] = BestCheckpoint(metric, best.mode)

    def reconcile(self, state: State, stored: set[str], new_names: Mapping[str, str]) -> None:
        """Drop the names of checkpoints that are not stored, and label the others again.

        `new_names` are names of the best checkpoints of some metrics that were not known before.
        """
        for metric, best in self._bests.items():
            name = new_names.get(metric, best.name)
            best.name = None
            if name in stored:
                self.mark(state, name, [metric])


def _find_first_val_metric(state: State) -> str:
    """Return the metric of `best: auto`, whether its direction is known or not."""
    for metric in list_val_metrics(state.metrics):
        return metric
    raise SettingError(f"best: auto found no validation metric; {list_known(state.metrics)}")


def _get_value(best: BestCheckpoint, state: State) -> float:
    """Return the metric's value if this phase computes it, else NaN.

    Raises SettingError if the first such phase does not have it.
    """
    if find_phase(best.metric):
        is_computed = state.computes(best.metric)
    else:
        # A metric without a phase comes with the last phase of validation.
        val_phases = list_phases("val", state.loaders) or ["val"]
        is_computed = state.phase == val_phases[-1]
    if not is_computed:
        return math.nan
    if best.metric not in state.metrics and best.score is None and state.metrics:
        raise SettingError(f"best: {explain_missing(best.metric, state.metrics)}")
    return state.metrics.get(best.metric, math.nan)

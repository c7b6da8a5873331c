"""The best checkpoints of a run: the best value of each monitored metric, and where it is stored."""

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hooks.errors import SettingError
from hooks.metrics.direction import Mode, choose_modes
from hooks.metrics.main_metric import choose_main_metric, list_val_metrics
from hooks.metrics.monitored import AUTO, find_declared_modes
from hooks.metrics.names import explain_missing, find_phase, get_kind, list_known, list_phases
from hooks.state import State


@dataclass
class BestCheckpoint:
    """The best value of a metric so far, and its checkpoint."""

    metric: str
    mode: Mode
    score: float | None = None
    checkpoint: str | None = None
    """Name of the checkpoint; None if it is not stored."""
    is_reported: bool = False
    """True once a phase has had the metric, which may be NaN."""

    def is_improved_by(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.score is None:
            return True
        return value > self.score if self.mode == "max" else value < self.score


class BestCheckpoints:
    """The best checkpoint of each monitored metric.

    Args:
        metrics: The metrics to monitor. The first validation chooses one if there are none, which
            is the main metric, or with `auto`, which is the first metric of validation.
        mode: Whether higher or lower values are better, for all metrics or for each.
    """

    def __init__(
        self, metrics: str | Sequence[str] | None, mode: Mode | Sequence[Mode] | None
    ) -> None:
        self._metrics = [metrics] if isinstance(metrics, str) else list(metrics or [])
        if AUTO in self._metrics and len(self._metrics) > 1:
            raise ValueError(f"best is {self._metrics}: set either auto, or a list of metrics")
        self._mode = mode
        self._best_by_metric: dict[str, BestCheckpoint] = {}
        self._restored: dict[str, BestCheckpoint] = {}
        """The best checkpoints by metric before the resume, until it is known which metrics are
        monitored."""
        self._choose: Callable[[State], str | None] | None = None
        """Function that chooses the metric; None if it is known."""
        if self._metrics == [AUTO]:
            self._choose = _find_first_val_metric
        elif not self._metrics:
            self._choose = _find_main_metric
        else:
            self._monitor(self._metrics)

    def _monitor(
        self,
        metrics: Sequence[str],
        declared: Mapping[str, str] | None = None,
        meters: Mapping[str, Mode] | None = None,
    ) -> None:
        for metric, mode in choose_modes(metrics, self._mode, declared, meters).items():
            best = self._restored.get(metric)
            # A score is useless if its direction has changed.
            if best is None or best.mode != mode:
                best = BestCheckpoint(metric, mode)
            self._best_by_metric[metric] = best
        self._restored = {}

    def list_checkpoints(self) -> list[str]:
        """Return the name of each metric's best checkpoint, if one is stored."""
        bests = [*self._best_by_metric.values(), *self._restored.values()]
        return [best.checkpoint for best in bests if best.checkpoint is not None]

    def choose_metric(self, state: State) -> None:
        """Choose the metric to monitor, at the first validation that has a suitable one."""
        if self._choose is None or get_kind(state.phase) != "val":
            return
        metric = self._choose(state)
        if metric is not None:
            self._monitor([metric], find_declared_modes(state.config), state.meter_modes)
            self._choose = None
            # It may be the best of the run from which this one continues.
            self._mark_stored(state)

    def check_metrics(self, state: State) -> None:
        """Raise SettingError if this phase should compute a monitored metric and does not have it,
        unless an earlier phase had it."""
        for metric, best in self._best_by_metric.items():
            if metric in state.metrics:
                best.is_reported = True
            elif state.metrics and not best.is_reported and _is_computed(metric, state):
                raise SettingError(f"best: {explain_missing(metric, state.metrics)}")

    def update_scores(self, state: State) -> list[str]:
        """Take over the values of this phase that are new best ones; return their metrics."""
        improved = []
        for metric, best in self._best_by_metric.items():
            value = state.metrics.get(metric, math.nan)
            if _is_computed(metric, state) and best.is_improved_by(value):
                best.score = value
                improved.append(metric)
        return improved

    def mark(self, state: State, checkpoint: str, metrics: Iterable[str]) -> None:
        """Label a stored checkpoint as the best by metrics; by the first monitored metric also as
        `best`."""
        for metric in metrics:
            self._best_by_metric[metric].checkpoint = checkpoint
            labels = [self._label(metric)]
            if metric == next(iter(self._best_by_metric)):
                labels.append("best")
            if state.checkpoints is not None:
                state.checkpoints.mark(checkpoint, *labels, metric=metric)

    def _label(self, metric: str) -> str:
        """Return the label of a metric's best checkpoint, in which `-` stands for `/` and spaces if
        that is clear."""
        shortened = {known: re.sub(r"[/ ]+", "-", known) for known in self._best_by_metric}
        is_clear = list(shortened.values()).count(shortened[metric]) == 1
        return f"best-{shortened[metric] if is_clear else metric}"

    # Resuming

    def state_dict(self) -> dict[str, Any]:
        bests = [*self._best_by_metric.values(), *self._restored.values()]
        return {
            "chosen_by": self._metrics if self._choose is None else None,
            "checkpoints": [asdict(best) for best in bests],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the best checkpoints of metrics that are monitored now."""
        self._restored = {best["metric"]: BestCheckpoint(**best) for best in state["checkpoints"]}
        if self._choose is None:
            self._monitor(self._metrics)
        elif state["chosen_by"] == self._metrics:
            # The same setting has already chosen.
            declared = {metric: best.mode for metric, best in self._restored.items()}
            self._monitor([*declared], declared)
            self._choose = None

    def resume(
        self,
        state: State,
        restored: str,
        metrics: Container[str],
        stored: Container[str],
        *,
        is_same_run: bool,
    ) -> None:
        """Continue from a checkpoint: forget the names of those that are not stored, and label the
        others again.

        Args:
            state: The state of the run.
            restored: Name of the restored checkpoint.
            metrics: Metrics by which it is the best.
            stored: Names of the stored checkpoints.
            is_same_run: Whether it is a checkpoint of this run. Otherwise, the best values that
                other checkpoints have are forgotten.
        """
        for best in (*self._best_by_metric.values(), *self._restored.values()):
            if best.metric in metrics:
                best.checkpoint = restored
            elif not is_same_run:
                best.score = None
                best.checkpoint = None
            if best.checkpoint not in stored:
                best.checkpoint = None
        self._mark_stored(state)

    def _mark_stored(self, state: State) -> None:
        for metric, best in self._best_by_metric.items():
            if best.checkpoint is not None:
                self.mark(state, best.checkpoint, [metric])


def _find_first_val_metric(state: State) -> str:
    """Return the metric of `best: auto`, whether its direction is known or not."""
    for metric in list_val_metrics(state.metrics):
        return metric
    raise SettingError(f"best: auto found no validation metric; {list_known(state.metrics)}")


def _find_main_metric(state: State) -> str | None:
    """Return the run's main metric; None if no direction is known."""
    return choose_main_metric(state.metrics, state.config, state.meter_modes)


def _is_computed(metric: str, state: State) -> bool:
    """Return whether the current phase computes a metric. One without a phase comes with the last
    phase of validation."""
    if find_phase(metric):
        return state.computes(metric)
    val_phases = list_phases("val", state.loaders) or ["val"]
    return state.phase == val_phases[-1]

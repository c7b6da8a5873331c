"""Learning-rate schedules."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hooks.errors import SettingError
from hooks.hook import Hook, Priority
from hooks.interval import Interval
from hooks.metrics.direction import find_direction
from hooks.metrics.monitored import find_declared_modes
from hooks.metrics.names import explain_missing
from hooks.needs import Needs
from hooks.setup import NEEDS_MODEL, Setup
from hooks.state import State


@dataclass
class ParamScheduler(Hook):
    """Step the learning-rate scheduler, by epochs, optimizer steps or a metric.

        param_scheduler: {every: 1 step}

    The loop records the learning rates of each iteration and saves the scheduler. Source: MMEngine
    ParamSchedulerHook.
    """

    every: Annotated[Interval, Needs("monitor", None)] = Interval(1)
    """Epochs or optimizer steps between scheduler steps."""
    monitor: str | None = None
    """Metric for ReduceLROnPlateau, such as val/loss; the scheduler steps after each phase that
    computes it."""

    monitors: ClassVar[str] = "monitor"
    monitors_in_training: ClassVar[bool] = True
    priority: ClassVar[Priority] = Priority.LOW
    """Hooks before it see the rates that the step used, and hooks after it the next ones."""

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(custom_loop=NEEDS_MODEL)

    def on_start(self, state: State) -> None:
        schedulers = _list_schedulers(state)
        _check_kinds(schedulers)
        for scheduler in schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                self._check_plateau(scheduler, state)
            elif self.monitor and isinstance(scheduler, LRScheduler):
                kind = type(scheduler).__name__
                raise ValueError(f"{kind} takes no metric; remove monitor={self.monitor!r}")

    def _check_plateau(self, scheduler: ReduceLROnPlateau, state: State) -> None:
        """Raise ValueError if a scheduler has no metric, or the other mode than the metric."""
        kind = type(scheduler).__name__
        if self.monitor is None:
            raise ValueError(f"{kind} needs a metric; set monitor, such as monitor: val/loss")
        declared = find_declared_modes(state.config)
        better = find_direction(self.monitor, declared, state.meter_modes)
        if better not in (None, scheduler.mode):
            raise ValueError(
                f"{kind}: mode must be {better} for {self.monitor}, got {scheduler.mode}"
            )

    def on_step(self, state: State) -> None:
        if state.phase == "train":
            self._step_when_due(state)

    def handles(self, event: str) -> bool:
        """Return whether the hook acts at an event; steps only with `every` in steps."""
        steps_by_steps = self.every.unit == "steps" and self.monitor is None
        return (event != "on_step" or steps_by_steps) and super().handles(event)

    def on_phase_end(self, state: State) -> None:
        if self.monitor is not None:
            self._step_on_metric(state, self.monitor)
        elif state.phase == "train" and self.every.unit == "epochs":
            self._step_when_due(state)

    def _step_when_due(self, state: State) -> None:
        if self.monitor is None and self.every.due(state):
            for scheduler in _list_schedulers(state):
                scheduler.step()

    def _step_on_metric(self, state: State, monitor: str) -> None:
        schedulers = _list_schedulers(state)
        if not schedulers or not state.computes(monitor):
            return
        if monitor not in state.metrics:
            raise SettingError(f"monitor: {explain_missing(monitor, state.metrics)}")
        for scheduler in schedulers:
            scheduler.step(state.metrics[monitor])


def _check_kinds(schedulers: Sequence[Any]) -> None:
    """Raise ValueError if some of torch's schedulers step by a metric and others do not."""
    of_torch = [scheduler for scheduler in schedulers if isinstance(scheduler, LRScheduler)]
    others = [scheduler for scheduler in of_torch if not isinstance(scheduler, ReduceLROnPlateau)]
    if 0 < len(others) < len(of_torch):
        kind = type(others[0]).__name__
        raise ValueError(
            f"ReduceLROnPlateau steps by a metric and {kind} does not, so one run cannot have"
            " both; give all optimizers ReduceLROnPlateau, or none"
        )


def _list_schedulers(state: State) -> list[Any]:
    return [scheduler for scheduler in state.schedulers.values() if scheduler is not None]

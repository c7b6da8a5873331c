"""Changes: settings that get other values while the run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hooks.plan import Plan
from hooks.private_torch import inner_schedulers
from hooks.state import State
from orchestrator.config.changes import unchangeable
from orchestrator.config.experiment import Change, Experiment
from orchestrator.config.parameters import construct
from orchestrator.errors import ConfigError, Problem

_SCALED_WITH_LR = ("lr", "initial_lr", "max_lr", "min_lr")


class Changes:
    """Makes the experiment's `changes` as their epochs and steps come, and keeps the optimizer's numbers in force.

    Only what may change in flight does: fields that a hook calls mutable, and numbers of the optimizer. A learning rate
    is changed by scaling, so that parameter groups keep their ratios and a scheduler its course. A checkpoint holds the
    optimizer as it was; restored under another experiment, it is brought to that one's numbers. Every rank does the
    same; no communication. Worker process.
    """

    def __init__(self, experiment: Experiment, plan: Plan, state: State) -> None:
        assert state.optimizer is not None
        self._experiment, self._plan, self._state = experiment, plan, state
        self._entries = {name: dict(entry) for name, entry in experiment.hooks.items() if isinstance(entry, Mapping)}
        self._configured = {key: value for key, value in state.optimizer.defaults.items() if type(value) in (int, float)}
        self.optimizer: dict[str, float] = dict(self._configured)
        """The optimizer's numbers in force."""
        self.coming: list[Change] = list(experiment.changes)
        """What is still to change."""

    def advance(self) -> None:
        """Makes the changes whose time has come; call it between two iterations. Raises ConfigError."""
        for change in [change for change in self.coming if change.at.reached(self._state)]:
            self.coming.remove(change)
            for path, value in change.set.items():
                self._set(path, value)

    def restored(self, saved: Mapping[str, float]) -> None:
        """Takes up from a checkpoint, whose optimizer had the numbers `saved`: what was due before it is made again."""
        self.optimizer |= {key: value for key, value in saved.items() if key in self.optimizer}
        in_force = dict(self._configured)
        for change in [change for change in self.coming if self._is_past(change)]:
            self.coming.remove(change)
            for path, value in change.set.items():
                group, _, key = path.partition(".")
                if group == "optimizer":
                    in_force[key] = value
                else:
                    self._set(path, value)
        for key, value in in_force.items():
            self._set_optimizer(key, value)

    def _is_past(self, change: Change) -> bool:
        """Whether a checkpoint of the present step holds a change: one that is due right here comes after it."""
        state, count = self._state, change.at.count
        if change.at.unit == "steps":
            return count < state.step
        return count < state.epoch or (count == state.epoch and state.phase_iteration > 0)

    def _set(self, path: str, value: Any) -> None:
        message = unchangeable(path, self._experiment)
        if message:
            raise ConfigError([Problem(path, message)])
        group, _, rest = path.partition(".")
        if group == "optimizer":
            self._set_optimizer(rest, value)
        else:
            name, _, field = rest.partition(".")
            self._set_hook(name, field, value)

    def _set_hook(self, name: str, field: str, value: Any) -> None:
        entry = self._entries[name] = {**self._entries[name], field: value}
        hook = self._plan.hooks.get(name)
        if hook is None:
            return
        settings = {key: value for key, value in entry.items() if key not in ("type", "priority")}
        made, _ = construct(type(hook), settings, f"hooks.{name}")
        self._plan.change(name, field, getattr(made, field))

    def _set_optimizer(self, key: str, value: float) -> None:
        if key not in self.optimizer:
            raise ConfigError([Problem(f"optimizer.{key}", f"is no number of this optimizer; it has {', '.join(self.optimizer)}")])
        old, self.optimizer[key] = self.optimizer[key], value
        if value == old:
            return
        assert self._state.optimizer is not None
        for group in self._state.optimizer.param_groups:
            for name in _SCALED_WITH_LR if key == "lr" else (key,):
                if name in group:
                    group[name] = _scaled(group[name], old, value)
        if key == "lr":
            _scale_base_lrs(self._state.scheduler, old, value)


def _scaled(number: Any, old: float, new: float) -> Any:
    """What was `old` becomes `new`, and what was in proportion to it stays so."""
    if isinstance(number, Tensor):
        return number.mul_(new / old) if old else number.fill_(new)
    if number == old or not old:
        return new
    return number * (new / old)


def _scale_base_lrs(scheduler: Any, old: float, new: float) -> None:
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [_scaled(lr, old, new) for lr in scheduler.base_lrs]
    for inner in inner_schedulers(scheduler):
        _scale_base_lrs(inner, old, new)

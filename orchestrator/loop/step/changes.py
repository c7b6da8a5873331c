"""Changes: settings that get other values during the run. Runs in workers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from hooks.plan import Plan
from hooks.private_torch import inner_schedulers
from hooks.state import State
from orchestrator.checkpoint.position import Position
from orchestrator.config.components import PLAN_KEYS
from orchestrator.config.optim.changes import explain_unchangeable, with_number
from orchestrator.config.optim.optimizer import build_optimizer
from orchestrator.config.optim.schedule import Timeline
from orchestrator.config.python.parameters import construct, parameters
from orchestrator.config.sections.experiment import Change, Component, Experiment, Optimization, parse_optimizer_path
from orchestrator.errors import CheckpointError, ConfigError, Problem
from orchestrator.task import Task

Groups = Sequence[Mapping[str, Any]]
"""The parameter groups of an optimizer."""

_SCALED_WITH_LR = ("lr", "initial_lr", "max_lr", "min_lr")


class Changes:
    """The experiment's `changes`, applied at their epochs and steps, and the optimizers' present settings.

    Only mutable fields of hooks and numbers of the optimizer may change. A second optimizer, built with the new number,
    shows what that is in each parameter group, as the task's own may do anything with its arguments. A learning rate is
    scaled, so that a scheduler keeps its shape. A checkpoint holds the optimizer as it was; another experiment brings
    it to its own numbers. Every rank does the same; no communication.
    """

    def __init__(self, experiment: Experiment, task: Task, plan: Plan, state: State, timeline: Timeline) -> None:
        self._experiment, self._task, self._plan, self._state = experiment, task, plan, state
        self._timeline = timeline
        self._entries = {name: dict(entry) for name, entry in experiment.hooks.items() if isinstance(entry, Mapping)}
        self._optimizers = experiment.optimizations
        self.coming: list[Change] = sorted(experiment.changes, key=lambda change: timeline.steps(change.at))
        """Changes still to come, in order."""
        for path, value in (item for change in self.coming for item in change.set.items()):
            number = parse_optimizer_path(path)
            if number and (after := with_number(before := self._optimizers[number[0]], number[1], value)) != before:
                self._differing_groups(before, after)

    def advance(self) -> None:
        """Make the changes that are due; call it between two iterations. Raises ConfigError."""
        for change in [change for change in self.coming if change.at.reached(self._state)]:
            self.coming.remove(change)
            for path, value in change.set.items():
                self._set(path, value)

    def current_settings(self, name: str) -> dict[str, Any]:
        return self._optimizers[name].optimizer.model_dump()

    def refuse_another_optimizer(self, name: str, saved: Mapping[str, Any]) -> None:
        """Raise CheckpointError if a checkpoint's optimizer, with settings `saved`, is of another type."""
        kind = self._optimizers[name].optimizer.type
        if saved["type"] != kind:
            raise CheckpointError(
                f"the checkpoint was made with the optimizer {saved['type']} and cannot continue with {kind}"
            )

    def replay(self, name: str, position: Position, default: int) -> None:
        """Move an optimizer's rates to a position, as if it had trained so far with its new scheduler.

        A scheduler that a metric steps starts over. One that a hook of the user steps takes `default` steps.
        """
        scheduler = self._state.schedulers[name]
        ticks = self._timeline.ticks(position.step, position.epoch, default) if scheduler else 0
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for _ in range(ticks):
                scheduler.step()

    def restored(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from a checkpoint with the optimizers' settings `saved`, and repeat the changes before it.

        An optimizer with empty settings has this experiment's numbers already. Raises ConfigError.
        """
        in_force = dict(self._optimizers)
        for name, configured in in_force.items():
            if saved[name]:
                self._optimizers[name] = replace(configured, optimizer=Component(**saved[name]))
        for change in [change for change in self.coming if self._is_past(change)]:
            self.coming.remove(change)
            for path, value in change.set.items():
                number = parse_optimizer_path(path)
                if number:
                    in_force[number[0]] = with_number(in_force[number[0]], number[1], value)
                else:
                    self._set(path, value)
        for after in in_force.values():
            self._bring_optimizer_to(after)

    def _is_past(self, change: Change) -> bool:
        """Return whether a checkpoint of this place holds a change. One that is due right here comes after it."""
        state, count = self._state, change.at.count
        if change.at.unit == "steps":
            return count < state.step
        return count < state.epoch or (count == state.epoch and state.phase_iteration > 0)

    def _set(self, path: str, value: Any) -> None:
        message = explain_unchangeable(path, self._experiment)
        if message:
            raise ConfigError([Problem(path, message)])
        number = parse_optimizer_path(path)
        if number:
            self._bring_optimizer_to(with_number(self._optimizers[number[0]], number[1], value))
        else:
            _, name, field = path.split(".", 2)
            self._set_hook(name, field, value)

    def _set_hook(self, name: str, field: str, value: Any) -> None:
        entry = self._entries[name] = {**self._entries[name], field: value}
        hook = self._plan.hooks.get(name)
        if hook is None:
            return
        settings = {
            key: value
            for key, value in entry.items()
            if key != "type" and (key not in PLAN_KEYS or key in parameters(type(hook)))
        }
        changed, _ = construct(type(hook), settings, f"hooks.{name}")
        self._plan.set_field(name, field, getattr(changed, field))

    # The optimizer

    def _differing_groups(self, before: Optimization, after: Optimization) -> tuple[Groups, Groups]:
        """Return the parameter groups of two optimizers; raises ConfigError if they differ in more than numbers."""
        old, new = (
            build_optimizer(version, self._task, self._state.module).param_groups for version in (before, after)
        )
        was, now = before.optimizer.arguments, after.optimizer.arguments
        path = f"{after.path}.{', '.join(key for key in was | now if was.get(key, ...) != now.get(key, ...))}"
        if [len(group["params"]) for group in old] != [len(group["params"]) for group in new]:
            problem = "would move parameters between groups, which is impossible during training"
            raise ConfigError([Problem(path, problem)])
        if all(map(_same, old, new)):
            problem = "does not change any parameter group of this optimizer, so it cannot change during training"
            raise ConfigError([Problem(path, problem)])
        return old, new

    def _bring_optimizer_to(self, after: Optimization) -> None:
        optimizer, state = after.name, self._state
        before, self._optimizers[optimizer] = self._optimizers[optimizer], after
        if before == after:
            return
        old, new = self._differing_groups(before, after)
        for group, was, now in zip(state.optimizers[optimizer].param_groups, old, new, strict=True):
            for name in now.keys() - {"params"}:
                if was.get(name) == now[name]:
                    continue
                for scaled in _SCALED_WITH_LR if name == "lr" else (name,):
                    if scaled in group:
                        group[scaled] = _scaled(group[scaled], was.get(name), now[name])
        _scale_base_lrs(state.schedulers[optimizer], [group["lr"] for group in old], [group["lr"] for group in new])


def _same(group: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(other.get(name) == value for name, value in group.items() if name != "params")


def _scaled(number: Any, old: Any, new: Any) -> Any:
    """Return a number after the change from `old` to `new`, in the same proportion."""
    if isinstance(number, Tensor):
        return number.mul_(new / old) if old else number.fill_(new)
    if not old or number == old or type(new) not in (int, float):
        return new
    return number * (new / old)


def _scale_base_lrs(scheduler: Any, old: Sequence[float], new: Sequence[float]) -> None:
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [_scaled(*three) for three in zip(scheduler.base_lrs, old, new, strict=True)]
    for inner in inner_schedulers(scheduler):
        _scale_base_lrs(inner, old, new)

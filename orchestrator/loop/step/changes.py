"""Changes of settings during the run, from the section `changes`. Runs in workers."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from hooks.plan import Plan
from hooks.position import Position
from hooks.private_torch import inner_schedulers
from hooks.state import State
from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.changes import explain_unchangeable, with_number
from orchestrator.experiment.components import PLAN_KEYS
from orchestrator.experiment.fields.field_values import list_parameters
from orchestrator.experiment.fields.parameters import construct
from orchestrator.experiment.optim.component import Component, Optimization, parse_optimizer_path
from orchestrator.experiment.optim.optimizer import build_optimizer
from orchestrator.experiment.optim.timeline import Timeline
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.training import Change
from orchestrator.task import Task

Groups = Sequence[Mapping[str, Any]]
"""The parameter groups of an optimizer."""

_SCALED_WITH_LR = ("lr", "initial_lr", "max_lr", "min_lr")


class Changes:
    """The experiment's `changes`, applied at their epochs and steps, and the optimizers' current
    settings.

    Only mutable fields of hooks and numbers of the optimizer may change. To find the new value of
    each parameter group, this class builds a second optimizer, because a task's optimizer may do
    anything with its arguments. A learning rate is scaled, so a scheduler keeps its shape. A
    checkpoint holds the old optimizer settings, and a resumed experiment applies its own. Every
    rank does the same, without communication.
    """

    def __init__(
        self, experiment: Experiment, task: Task, plan: Plan, state: State, timeline: Timeline
    ) -> None:
        self._experiment, self._task, self._plan, self._state = experiment, task, plan, state
        self._timeline = timeline
        self._entries = {
            name: dict(entry)
            for name, entry in experiment.hooks.items()
            if isinstance(entry, Mapping)
        }
        self._optimizers = experiment.optimizations
        self.pending: list[Change] = sorted(
            experiment.changes, key=lambda change: timeline.count_steps_before(change.at)
        )
        """Changes not yet made, in order."""
        for path, value in (item for change in self.pending for item in change.set.items()):
            number = parse_optimizer_path(path)
            if (
                number
                and (after := with_number(before := self._optimizers[number[0]], number[1], value))
                != before
            ):
                self._compare_groups(before, after)  # raises ConfigError

    def advance(self) -> None:
        """Make the changes that are due; call it between two iterations. Raises ConfigError."""
        for change in [change for change in self.pending if change.at.reached(self._state)]:
            self.pending.remove(change)
            for path, value in change.set.items():
                self._set(path, value)

    def current_settings(self, name: str) -> dict[str, Any]:
        return self._optimizers[name].optimizer.model_dump()

    def replay(self, name: str, position: Position, default: int) -> None:
        """Advance a new scheduler to a position, as if the optimizer had always trained with it.

        A scheduler that steps on a metric starts over. A scheduler that a user's hook steps takes
        `default` steps.
        """
        scheduler = self._state.schedulers[name]
        ticks = (
            self._timeline.count_ticks(position.step, position.epoch, default) if scheduler else 0
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for _ in range(ticks):
                scheduler.step()

    def restore(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from a checkpoint with the optimizer settings `saved`, and repeat the changes
        before it.

        Empty settings mean that the optimizer already has this experiment's numbers. Raises
        ConfigError.
        """
        current = dict(self._optimizers)
        for name, configured in current.items():
            if saved[name]:
                self._optimizers[name] = replace(configured, optimizer=Component(**saved[name]))
        for change in [change for change in self.pending if self._is_past(change)]:
            self.pending.remove(change)
            for path, value in change.set.items():
                number = parse_optimizer_path(path)
                if number:
                    current[number[0]] = with_number(current[number[0]], number[1], value)
                else:
                    self._set(path, value)
        for after in current.values():
            self._set_optimizer(after)

    def _is_past(self, change: Change) -> bool:
        """Return whether a checkpoint at this position contains a change; a change due exactly here
        comes later."""
        state, count = self._state, change.at.count
        if change.at.unit == "steps":
            return count < state.step or (
                count == state.step and state.step_iteration < state.iteration
            )
        return count < state.epoch or (count == state.epoch and state.phase_iteration > 0)

    def _set(self, path: str, value: Any) -> None:
        message = explain_unchangeable(path, self._experiment)
        if message:
            raise ConfigError.at(path, message)
        number = parse_optimizer_path(path)
        if number:
            self._set_optimizer(with_number(self._optimizers[number[0]], number[1], value))
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
            if key != "type" and (key not in PLAN_KEYS or key in list_parameters(type(hook)))
        }
        changed, _ = construct(type(hook), settings, f"hooks.{name}")
        self._plan.set_field(name, field, getattr(changed, field))

    # The optimizer

    def _compare_groups(self, before: Optimization, after: Optimization) -> tuple[Groups, Groups]:
        """Return the parameter groups of two optimizers; raises ConfigError if they differ in more
        than numbers."""
        old, new = (
            build_optimizer(version, self._task, self._state.module).param_groups
            for version in (before, after)
        )
        was, now = before.optimizer.arguments, after.optimizer.arguments
        keys = [key for key in was | now if was.get(key, ...) != now.get(key, ...)]
        path = f"{after.path}.{', '.join(keys)}"
        if [len(group["params"]) for group in old] != [len(group["params"]) for group in new]:
            problem = "would move parameters between groups, which is impossible during training"
            raise ConfigError.at(path, problem)
        # A setting of the groups may have been written as what it is by default.
        if all(map(_is_equal, old, new)) and not all(key in new[0] for key in keys):
            problem = "does not change any parameter group of this optimizer, so it cannot change during training"
            raise ConfigError.at(path, problem)
        return old, new

    def _set_optimizer(self, after: Optimization) -> None:
        optimizer, state = after.name, self._state
        before, self._optimizers[optimizer] = self._optimizers[optimizer], after
        if before == after:
            return
        old, new = self._compare_groups(before, after)
        for group, was, now in zip(state.optimizers[optimizer].param_groups, old, new, strict=True):
            for name in now.keys() - {"params"}:
                if was.get(name) == now[name]:
                    continue
                for scaled in _SCALED_WITH_LR if name == "lr" else (name,):
                    if scaled in group:
                        group[scaled] = _scale(group[scaled], was.get(name), now[name])
        _scale_base_lrs(
            state.schedulers[optimizer],
            [group["lr"] for group in old],
            [group["lr"] for group in new],
        )


def _is_equal(group: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(other.get(name) == value for name, value in group.items() if name != "params")


def _scale(number: Any, old: Any, new: Any) -> Any:
    """Scale a number by `new / old`; a tensor in place."""
    if isinstance(number, Tensor):
        return number.mul_(new / old) if old else number.fill_(new)
    if not old or number == old or type(new) not in (int, float):
        return new
    return number * (new / old)


def _scale_base_lrs(scheduler: Any, old: Sequence[float], new: Sequence[float]) -> None:
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [
            _scale(*numbers) for numbers in zip(scheduler.base_lrs, old, new, strict=True)
        ]
    for inner in inner_schedulers(scheduler):
        _scale_base_lrs(inner, old, new)

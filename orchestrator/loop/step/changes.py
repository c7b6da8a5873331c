"""Changes of settings during the run, from the section `changes`. Runs in workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from hooks.event_plan import Plan
from hooks.interval import Interval
from hooks.optimizer_name import OptimizerName
from hooks.private_torch import inner_schedulers
from hooks.state import State
from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.changes import with_number
from orchestrator.experiment.components import PLAN_KEYS
from orchestrator.experiment.fields.construction import construct
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.experiment.optim.building import build_optimizer
from orchestrator.experiment.optim.component import Component, Optimization, parse_optimizer_path
from orchestrator.experiment.optim.timeline import Timeline
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.training import Change
from orchestrator.task import Task

Groups = Sequence[Mapping[str, Any]]
"""The parameter groups of an optimizer."""

_SCALED_WITH_LR = ("lr", "initial_lr", "max_lr", "min_lr")


@dataclass(frozen=True)
class _PendingChange:
    """A change that is not made yet, by what it sets."""

    at: Interval
    fields: Sequence[tuple[str, str, Any]]
    """The hook, the field and the new value of each changed field."""
    numbers: Sequence[tuple[OptimizerName, str, float]]
    """The optimizer, the key and the new value of each changed number."""

    @classmethod
    def parse(cls, change: Change) -> Self:
        fields = []
        numbers = []
        for path, value in change.set.items():
            number = parse_optimizer_path(path)
            if number is None:
                _, hook, field = path.split(".", 2)
                fields.append((hook, field, value))
            else:
                name, key = number
                numbers.append((name, key, value))
        return cls(change.at, fields, numbers)


class Changes:
    """The experiment's `changes`, applied when due, and the optimizers' current settings.

    Only mutable fields of hooks and numbers of the optimizer may change. To find the new value of
    each parameter group, this class builds a second optimizer, because a task's optimizer may do
    anything with its arguments. A learning rate is scaled, so a scheduler keeps its shape. A
    checkpoint holds the old optimizer settings, and a resumed experiment applies its own. Every
    rank does the same, without communication.
    """

    def __init__(
        self, experiment: Experiment, task: Task, plan: Plan, state: State, timeline: Timeline
    ) -> None:
        self._task = task
        self._plan = plan
        self._state = state
        self._optimizers = experiment.optimizations
        self._entries = {
            name: dict(entry)
            for name, entry in experiment.hooks.items()
            if isinstance(entry, Mapping)
        }
        self.pending = sorted(
            map(_PendingChange.parse, experiment.changes),
            key=lambda change: timeline.count_steps(change.at),
        )
        """Changes not yet made, in order."""
        for change in self.pending:
            self._check_numbers(change)

    def _check_numbers(self, change: _PendingChange) -> None:
        """Raise ConfigError if the optimizer cannot change as `change` says."""
        for name, key, value in change.numbers:
            before = self._optimizers[name]
            after = with_number(before, key, value)
            if after != before:
                self._compare_groups(before, after)

    def advance(self) -> None:
        """Make the changes that are due; call it between two iterations. Raises ConfigError."""
        for change in [change for change in self.pending if change.at.reached(self._state)]:
            self.pending.remove(change)
            self._set_fields(change)
            for name, key, value in change.numbers:
                self._set_optimizer(with_number(self._optimizers[name], key, value))

    def current_settings(self, name: OptimizerName) -> dict[str, Any]:
        return self._optimizers[name].optimizer.model_dump()

    def restore(self, saved: Mapping[OptimizerName, Mapping[str, Any]]) -> None:
        """Continue from a checkpoint with the optimizer settings `saved`.

        This repeats the changes before the checkpoint. Empty settings mean that the optimizer
        already has this experiment's numbers. Raises ConfigError.
        """
        current = dict(self._optimizers)
        for name, configured in current.items():
            if saved[name]:
                self._optimizers[name] = replace(configured, optimizer=Component(**saved[name]))
        for change in [change for change in self.pending if self._is_past(change)]:
            self.pending.remove(change)
            self._set_fields(change)
            for name, key, value in change.numbers:
                current[name] = with_number(current[name], key, value)
        for after in current.values():
            self._set_optimizer(after)

    def _is_past(self, change: _PendingChange) -> bool:
        """Return whether a checkpoint at this position contains a change.

        A change that is due exactly here comes later.
        """
        state = self._state
        count = change.at.count
        if change.at.unit == "steps":
            is_within = state.step_iteration < state.iteration
            return count < state.step or (count == state.step and is_within)
        return count < state.epoch or (count == state.epoch and state.phase_iteration > 0)

    def _set_fields(self, change: _PendingChange) -> None:
        for hook, field, value in change.fields:
            self._set_field(hook, field, value)

    def _set_field(self, name: str, field: str, value: Any) -> None:
        entry = self._entries[name]
        entry[field] = value
        hook = self._plan.hooks.get(name)
        if hook is None:
            return
        of_plan = set(PLAN_KEYS).difference(list_parameters(type(hook)))
        settings = {
            key: value for key, value in entry.items() if key != "type" and key not in of_plan
        }
        changed, _ = construct(type(hook), settings, f"hooks.{name}")
        self._plan.set_field(name, field, getattr(changed, field))

    # The optimizer

    def _compare_groups(self, before: Optimization, after: Optimization) -> tuple[Groups, Groups]:
        """Return the parameter groups of two optimizers.

        Raises ConfigError if they differ in more than numbers.
        """
        old = self._build_groups(before)
        new = self._build_groups(after)
        keys = _list_changed_keys(before.optimizer.arguments, after.optimizer.arguments)
        path = f"{after.path}.{', '.join(keys)}"
        if [len(group["params"]) for group in old] != [len(group["params"]) for group in new]:
            raise ConfigError.at(
                path, "would move parameters between groups, which is impossible during training"
            )
        # A setting of the groups may have been written as what it is by default.
        if all(map(_is_equal, old, new)) and not all(key in new[0] for key in keys):
            raise ConfigError.at(
                path,
                "does not change any parameter group of this optimizer, so it cannot change during training",
            )
        return old, new

    def _build_groups(self, optimization: Optimization) -> Groups:
        return build_optimizer(optimization, self._task, self._state.module).param_groups

    def _set_optimizer(self, after: Optimization) -> None:
        name = after.name
        before = self._optimizers[name]
        self._optimizers[name] = after
        if before == after:
            return
        old, new = self._compare_groups(before, after)
        groups = self._state.optimizers[name].param_groups
        for group, was, now in zip(groups, old, new, strict=True):
            _change_numbers(group, was, now)
        _scale_base_lrs(
            self._state.schedulers[name],
            [group["lr"] for group in old],
            [group["lr"] for group in new],
        )


def _list_changed_keys(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [key for key in {**was, **now} if was.get(key, ...) != now.get(key, ...)]


def _change_numbers(group: dict[str, Any], was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Change the numbers of an optimizer's group that differ between two other groups."""
    for name in now.keys() - {"params"}:
        if was.get(name) == now[name]:
            continue
        for scaled in _SCALED_WITH_LR if name == "lr" else (name,):
            if scaled in group:
                group[scaled] = _scale(group[scaled], was.get(name), now[name])


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

"""Changes of the optimizers' numbers during training, and the scaling of their schedules. Runs in
workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hooks.optimizer_name import OptimizerName
from orchestrator.errors import ConfigError
from orchestrator.experiment.optim.building import make_groups
from orchestrator.experiment.optim.component import FROM_TASK
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.planned_change import NumberChange
from orchestrator.loop.step.scaling import Scaling, change_group, scale_schedule

Groups = Sequence[Mapping[str, Any]]
"""The settings of an optimizer's parameter groups, without a schedule."""

_PLAIN = (Real, str, tuple, type(None))


@dataclass(frozen=True)
class _Settings:
    """The settings of an optimizer."""

    written: Optimization
    groups: Groups
    """Those of its parameter groups, as it was built."""


class NumberChanges:
    """Changes of the numbers of optimizers, which scale their schedules.

    No optimizer is built again for that. The settings of a file decide the numbers of each group. A
    task's own method may do anything with its arguments, and is not called again: the key of each
    group changes by the same factor as the argument of its name.
    """

    def __init__(
        self,
        optimizations: Mapping[OptimizerName, Optimization],
        optimizers: Mapping[OptimizerName, Optimizer],
        module: nn.Module,
    ) -> None:
        """Take the settings of optimizers that no scheduler has changed yet."""
        self._optimizers = optimizers
        self._module = module
        self._settings = {
            name: _Settings(written, _read_groups(optimizers[name]))
            for name, written in optimizations.items()
        }

    def get_written(self, name: OptimizerName) -> dict[str, Any]:
        """Return the current settings of an optimizer as an experiment has them."""
        return self._settings[name].written.optimizer.model_dump()

    def get_groups(self, name: OptimizerName) -> Groups:
        """Return the current settings of an optimizer's groups."""
        return self._settings[name].groups

    def check(self, changes: Iterable[NumberChange]) -> None:
        """Raise ConfigError if an optimizer cannot make the changes one after the other."""
        self._change_settings(changes)

    def make(
        self, changes: Iterable[NumberChange], schedulers: Mapping[OptimizerName, Any]
    ) -> None:
        """Change the numbers of the optimizers, and scale their schedules.

        Raises ConfigError.
        """
        self.restore({}, changes, schedulers)

    def restore(
        self,
        saved: Mapping[OptimizerName, Groups],
        changes: Iterable[NumberChange],
        schedulers: Mapping[OptimizerName, Any],
    ) -> None:
        """Make changes; the optimizers in `saved` have the state of a checkpoint with these settings,
        and get those of this experiment.

        Raises ConfigError.
        """
        before = {name: settings.groups for name, settings in self._settings.items()} | dict(saved)
        self._settings = self._change_settings(changes)
        for name, settings in self._settings.items():
            self._set(name, before[name], settings.groups, schedulers[name])

    def _set(self, name: OptimizerName, before: Groups, after: Groups, scheduler: Any) -> None:
        """Change an optimizer and its schedule from settings of the groups to others."""
        groups = self._optimizers[name].param_groups
        for group, old, new in zip(groups, before, after, strict=True):
            change_group(group, old, new)
        scalings = [
            Scaling(old["lr"], new["lr"])
            for old, new in zip(before, after, strict=True)
            if "lr" in new
        ]
        if any(scaling.old != scaling.new for scaling in scalings):
            scale_schedule(scheduler, scalings)

    def _change_settings(self, changes: Iterable[NumberChange]) -> dict[OptimizerName, _Settings]:
        settings = dict(self._settings)
        for change in changes:
            name = change.optimizer
            settings[name] = self._change(settings[name], change.key, change.value)
        return settings

    def _change(self, settings: _Settings, key: str, value: float) -> _Settings:
        """Return the settings with a number changed.

        Raises ConfigError.
        """
        before = settings.written
        after = before.with_number(key, value)
        path = f"{before.path}.{key}"
        groups = [
            _change_arguments(group, old, new, path)
            for group, old, new in zip(
                settings.groups,
                self._list_arguments(before, path),
                self._list_arguments(after, path),
                strict=True,
            )
        ]
        if before.optimizer.type == FROM_TASK:
            _check_factor(before.arguments.get(key), groups, path)
        return _Settings(after, groups)

    def _list_arguments(self, written: Optimization, path: str) -> Groups:
        """Return the arguments of each parameter group.

        Raises ConfigError if the number at `path` moves parameters between groups.
        """
        groups = self._optimizers[written.name].param_groups
        if written.optimizer.type == FROM_TASK or written.groups is None:
            return [written.arguments] * len(groups)

        trained = {parameter for group in groups for parameter in group["params"]}
        named = self._module.named_parameters(remove_duplicate=False)
        made = make_groups(written, {name: value for name, value in named if value in trained})
        if [len(group["params"]) for group in made] != [len(group["params"]) for group in groups]:
            raise ConfigError.at(
                path, "would move parameters between groups, which is impossible during training"
            )
        return [{**written.arguments, **_without_parameters(group)} for group in made]


def _read_groups(optimizer: Optimizer) -> Groups:
    """Return the settings of an optimizer's groups, without what else it may keep there."""
    return [_read_settings(group) for group in optimizer.param_groups]


def _read_settings(group: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {key: _as_number(value) for key, value in group.items()}
    return {key: value for key, value in numbers.items() if isinstance(value, _PLAIN)}


def _as_number(value: Any) -> Any:
    """Return the number in a tensor of one element, which a scheduler changes in place; any other
    value unchanged."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _without_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _check_factor(argument: Any, groups: Groups, path: str) -> None:
    """Raise ConfigError if an argument of the task's method tells no factor for several groups."""
    if len(groups) > 1 and not argument:
        raise ConfigError.at(
            path,
            f"cannot change from {argument}, because all groups of the task's optimizer() change by one factor",
            "begin with another number",
        )


def _change_arguments(
    group: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], path: str
) -> dict[str, Any]:
    """Return a group's settings after a change of its arguments.

    Raises ConfigError if the group has no such setting.
    """
    old = {**group, **before}
    changed = dict(group)
    for key, value in after.items():
        if key in old and old[key] == value:
            continue
        if key not in group:
            raise ConfigError.at(
                path,
                "is no key of this optimizer's parameter groups, so it cannot change during training",
            )
        changed[key] = Scaling(old[key], value).apply(group[key])
    return changed

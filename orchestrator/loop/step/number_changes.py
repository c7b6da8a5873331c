"""Changes of the optimizers' numbers during training, and the scaling of their schedules. Runs in
workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from numbers import Real
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hooks.optimizer_name import OptimizerName
from hooks.private_torch import inner_schedulers
from orchestrator.errors import ConfigError
from orchestrator.experiment.optim.building import make_groups
from orchestrator.experiment.optim.component import FROM_TASK
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.planned_change import NumberChange

Groups = Sequence[Mapping[str, Any]]
"""The settings of an optimizer's parameter groups, without a schedule."""

_RATES_OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""Keys of a parameter group that are its learning rate, or that a scheduler keeps there."""
_RATES_OF_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs")
"""Attributes of schedulers with a learning rate for each parameter group."""
_UPPER_ENDS = ("max_lr", "max_lrs", "swa_lr")
_LOWER_ENDS = ("min_lr", "min_lrs")
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
            _change_group(group, old, new)
        rates = [
            (old["lr"], new["lr"]) for old, new in zip(before, after, strict=True) if "lr" in new
        ]
        if any(old != new for old, new in rates):
            _scale_schedule(scheduler, rates)

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
    new = {key: value for key, value in after.items() if key not in old or old[key] != value}
    if not new.keys() <= group.keys():
        raise ConfigError.at(
            path,
            "is no key of this optimizer's parameter groups, so it cannot change during training",
        )
    return {**group, **{key: _scale(group[key], old[key], new[key]) for key in new}}


def _change_group(
    group: dict[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Change the settings of an optimizer's group, which its schedule may have changed."""
    for key, new in after.items():
        old = before.get(key)
        if old == new:
            continue
        for changed in _RATES_OF_GROUPS if key == "lr" else (key,):
            if changed in group:
                group[changed] = _scale_rate(changed, group[changed], old, new)


def _scale_schedule(scheduler: Any, rates: Sequence[tuple[Any, Any]]) -> None:
    """Scale a scheduler by the old and the new learning rate of each group."""
    for name in _RATES_OF_SCHEDULERS:
        numbers = getattr(scheduler, name, None)
        if numbers is not None:
            scaled = [
                _scale_rate(name, number, *pair)
                for number, pair in zip(numbers, rates, strict=True)
            ]
            setattr(scheduler, name, scaled)
    # All groups have one lower end, which cannot follow several factors.
    if hasattr(scheduler, "eta_min") and _is_one_factor(rates):
        scheduler.eta_min = _scale(scheduler.eta_min, *rates[0])
    for inner in inner_schedulers(scheduler):
        _scale_schedule(inner, rates)


def _is_one_factor(rates: Sequence[tuple[Any, Any]]) -> bool:
    if not all(old for old, _ in rates):
        return False
    factors = [new / old for old, new in rates]
    return all(isclose(factor, factors[0]) for factor in factors)


def _scale_rate(name: str, number: Any, old: Any, new: Any) -> Any:
    """Scale a number of a group or a scheduler by `new / old`.

    A change from 0 has no factor, so it leaves the ends of a schedule. An upper end of 0 is the
    rate itself.
    """
    is_end = name in _LOWER_ENDS or (name in _UPPER_ENDS and number)
    if is_end and not old:
        return number
    return _scale(number, old, new)


def _scale(number: Any, old: Any, new: Any) -> Any:
    """Scale a number by `new / old`; a tensor in place."""
    if isinstance(number, Tensor):
        return number.mul_(new / old) if old else number.fill_(new)
    if not old or number == old or type(new) not in (int, float):
        return new
    return number * (new / old)

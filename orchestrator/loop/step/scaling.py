"""The scaling of an optimizer's parameter groups and of its schedule, when one of their numbers
changes. Runs in workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any

from torch import Tensor

from hooks.private_torch import inner_schedulers

_RATES_OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""Keys of a parameter group that are its learning rate, or that a scheduler keeps there."""
_RATES_OF_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs")
"""Attributes of schedulers with a learning rate for each parameter group."""
_UPPER_ENDS = ("max_lr", "max_lrs", "swa_lr")
_LOWER_ENDS = ("min_lr", "min_lrs")


@dataclass(frozen=True)
class Scaling:
    """A change of a number, by whose factor other numbers change too."""

    old: Any
    new: Any

    @property
    def factor(self) -> float | None:
        """The factor; None if there is none, because the number was 0."""
        return self.new / self.old if self.old else None

    def apply(self, number: Any) -> Any:
        """Scale a number; a tensor in place. Without a factor, it becomes the new one."""
        if isinstance(number, Tensor):
            return number.fill_(self.new) if self.factor is None else number.mul_(self.factor)
        is_number = type(self.new) in (int, float)
        if not self.old or number == self.old or not is_number:
            return self.new
        return number * self.factor

    def apply_to_rate(self, name: str, number: Any) -> Any:
        """Scale a learning rate of a group or a scheduler. A change from 0 leaves the ends of a
        schedule. An upper end of 0 is the rate itself."""
        is_end = name in _LOWER_ENDS or (name in _UPPER_ENDS and number)
        if is_end and not self.old:
            return number
        return self.apply(number)


def change_group(
    group: dict[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Change the settings of an optimizer's group, which its schedule may have changed."""
    for key, new in after.items():
        scaling = Scaling(before.get(key), new)
        if scaling.old == scaling.new:
            continue
        if key == "lr":
            _scale_rates(group, scaling)
        else:
            # A checkpoint of an earlier version of the optimizer's class may lack it.
            group[key] = scaling.apply(group[key]) if key in group else new


def _scale_rates(group: dict[str, Any], scaling: Scaling) -> None:
    for name in _RATES_OF_GROUPS:
        if name in group:
            group[name] = scaling.apply_to_rate(name, group[name])


def scale_schedule(scheduler: Any, scalings: Sequence[Scaling]) -> None:
    """Scale a scheduler, and those within it, by the change of each group's learning rate."""
    for name in _RATES_OF_SCHEDULERS:
        rates = getattr(scheduler, name, None)
        if rates is None:
            continue
        scaled = [
            scaling.apply_to_rate(name, rate) for scaling, rate in zip(scalings, rates, strict=True)
        ]
        setattr(scheduler, name, scaled)
    # All groups have one lower end, which cannot follow several factors.
    if hasattr(scheduler, "eta_min") and _have_one_factor(scalings):
        scheduler.eta_min = scalings[0].apply(scheduler.eta_min)
    for inner in inner_schedulers(scheduler):
        scale_schedule(inner, scalings)


def _have_one_factor(scalings: Sequence[Scaling]) -> bool:
    factors = [scaling.factor for scaling in scalings]
    first = factors[0]
    return first is not None and all(
        factor is not None and isclose(factor, first) for factor in factors
    )

"""A change of settings during a run, by what it sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from hooks.interval import Interval
from hooks.optimizer_name import OptimizerName
from orchestrator.experiment.optim.optimization import parse_optimizer_path


@dataclass(frozen=True)
class HookChange:
    """New values of a hook's fields. They change together, so only all of them need to be valid."""

    hook: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class NumberChange:
    """A new number of an optimizer, also in one of its groups (`groups.0.lr`)."""

    optimizer: OptimizerName
    key: str
    value: float


@dataclass(frozen=True)
class PlannedChange:
    """The changes of one time."""

    at: Interval
    hooks: Sequence[HookChange]
    numbers: Sequence[NumberChange]

    @classmethod
    def parse(cls, at: Interval, values: Mapping[str, Any]) -> Self:
        """Return the change that sets the values of these dotted paths."""
        fields: dict[str, dict[str, Any]] = {}
        numbers: list[NumberChange] = []
        for path, value in values.items():
            number = parse_optimizer_path(path)
            if number is None:
                _, hook, field = path.split(".", 2)
                fields.setdefault(hook, {})[field] = value
            else:
                numbers.append(NumberChange(*number, value))
        return cls(at, [HookChange(*item) for item in fields.items()], numbers)

"""Optimizers and schedulers as an experiment names them: a class, and its arguments beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from hooks.optimizer_name import OptimizerName
from hooks.parameter_names import Patterns
from orchestrator.experiment.fields.plain_data import to_entry
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.yaml.dotted_paths import with_value

FROM_TASK = "task"
"""The `type` of an optimizer or scheduler that the task's own method creates."""


class Component(Model):
    """A class named by `type`, with its own arguments beside it; a null means the default of a
    class of torch."""

    model_config = ConfigDict(extra="allow")

    type: str = ""
    """A class of torch.optim (or torch.optim.lr_scheduler), or `module:Class`."""

    @classmethod
    def _convert(cls, values: Mapping[str, Any]) -> Any:
        return to_entry(values)

    @model_validator(mode="after")
    def _drop_nulls(self) -> Self:
        if self.type in ("", FROM_TASK) or ":" in self.type:  # a custom class may read a null
            return self
        arguments = self.model_extra or {}
        # `{lr:0.1}` is a null too, which is an error later.
        for key in [key for key, value in arguments.items() if value is None and ":" not in key]:
            del arguments[key]
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments beside `type`."""
        return dict(self.model_extra or {})


DEFAULT_OPTIMIZER = Component.model_validate({"type": "SGD", "lr": 0.1})

LRSchedulers = Annotated[
    Annotated[Component, Tag("one")] | Annotated[list[Component], Field(min_length=1), Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list) else "one"),
]
"""One learning-rate scheduler, or several, each for its part of the run."""


class NamedOptimizer(Component):
    """An optimizer among several: its class and arguments, its parameters, and its scheduler."""

    params: Patterns | None = None
    """Patterns, with * and ?, of the names of its parameters; by default the task's `parameters`
    selects them."""
    scheduler: LRSchedulers | None = None
    """Its scheduler, or a list of schedulers."""


@dataclass(frozen=True)
class Optimization:
    """An optimizer and its scheduler, as written."""

    name: OptimizerName
    optimizer: Component
    scheduler: LRSchedulers | None = None
    patterns: tuple[str, ...] = ()
    """Patterns of its parameters; the only optimizer trains all."""

    @property
    def path(self) -> str:
        return f"optimizers.{self.name}" if self.name else "optimizer"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the optimizer's class, without `groups`."""
        return {key: value for key, value in self.optimizer.arguments.items() if key != "groups"}

    @property
    def groups(self) -> Any:
        """The parameter groups as written; None without any."""
        return self.optimizer.arguments.get("groups")

    @property
    def scheduler_path(self) -> str:
        return f"optimizers.{self.name}.scheduler" if self.name else "scheduler"

    @property
    def schedulers(self) -> dict[str, Component]:
        """Schedulers by dotted path: none, one, or those of a list."""
        if isinstance(self.scheduler, list):
            return {
                f"{self.scheduler_path}.{index}": entry
                for index, entry in enumerate(self.scheduler)
            }
        return {self.scheduler_path: self.scheduler} if self.scheduler else {}

    def with_number(self, key: str, value: float) -> Self:
        """Return the optimizer with one of its numbers changed, also in a group.

        Raises ConfigError if it has no such key.
        """
        changed = with_value(self.optimizer.model_dump(), key, value)
        return replace(self, optimizer=Component(**changed))


_NO_NUMBERS = ("", "type", "groups", "params", "scheduler")
"""Keys of an optimizer that are no numbers of its own."""


def parse_optimizer_path(path: str) -> tuple[OptimizerName, str] | None:
    """Return the optimizer and the key of a path to one of its numbers, also in a group.

    None for any other path.
    """
    match path.split("."):
        case ["optimizer", *keys]:
            name = None
        case ["optimizers", name, *keys] if name:
            pass
        case _:
            return None

    match keys:
        case [key] if key not in _NO_NUMBERS:
            return name, key
        case ["groups", index, key] if index.isdecimal() and key != "match":
            return name, ".".join(keys)
    return None

"""An optimizer and its scheduler, as an experiment has them, and the paths of its numbers."""

from dataclasses import dataclass, replace
from typing import Any, Self

from hooks.optimizer_name import OptimizerName
from orchestrator.experiment.optim.component import Component, LRSchedulers
from orchestrator.experiment.yaml.dotted_paths import with_value


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

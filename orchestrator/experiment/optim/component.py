"""Optimizers and schedulers as an experiment names them: a class, and its arguments beside it."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from hooks.parameter_names import Patterns
from orchestrator.experiment.fields.plain_data import to_entry
from orchestrator.experiment.fields.section import Model

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

"""The base of every part of an experiment file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

from orchestrator.config.python.objects import to_config
from orchestrator.config.python.parameters import check
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass  # it has no public name for type checkers
else:
    ModelMetaclass = type(BaseModel)


class _FromPython(ModelMetaclass):
    """What is made by a call in Python is checked as a file is; pydantic makes parts without calling their class."""

    from_python: Callable[[Mapping[str, Any]], Any]

    def __call__(cls, **given: Any) -> Any:
        return cls.from_python(given)


class Model(BaseModel, metaclass=_FromPython):
    """The base of every part: unknown keys are errors, values cannot be changed, each field's doc sits under it.

    One made in Python may hold classes and objects; raises ConfigError where it is wrong.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    @classmethod
    def from_python(cls, given: Mapping[str, Any]) -> Self:
        """The part that has these values, checked; raises ConfigError."""
        return check(cls, to_config(given), "")

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises UsageError for a field: `model_copy` makes another."""
        if not name.startswith("_"):
            raise UsageError(f"{name} cannot be changed; model_copy(update={{'{name}': ...}}) makes another")
        super().__setattr__(name, value)

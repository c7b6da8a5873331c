"""The base of every section of an experiment file."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

from orchestrator.experiment.fields.parameters import check
from orchestrator.experiment.fields.plain_data import to_config

if TYPE_CHECKING:
    from pydantic._internal._model_construction import (
        ModelMetaclass,
    )  # it has no public name for type checkers
else:
    ModelMetaclass = type(BaseModel)


class _FromPython(ModelMetaclass):
    """Metaclass that checks models created by a call like files; pydantic itself does not call
    their class."""

    from_python: Callable[[Mapping[str, Any]], Any]

    def __call__(cls, **values: Any) -> Any:
        return cls.from_python(values)


class Model(BaseModel, metaclass=_FromPython):
    """The base of every part: unknown keys are errors, fields cannot be changed, each field's doc
    sits under it.

    A part created in Python may hold classes and objects; raises ConfigError where it is wrong.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
    )

    @classmethod
    def from_python(cls, values: Mapping[str, Any]) -> Self:
        """Return the part with these values, or raise ConfigError."""
        return check(cls, to_config(values), "")

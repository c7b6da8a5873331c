"""The base of every section of an experiment file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

from orchestrator.config.python.objects import to_config
from orchestrator.config.python.parameters import check
from orchestrator.config.text.reader import join
from orchestrator.errors import Problem

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass  # it has no public name for type checkers
else:
    ModelMetaclass = type(BaseModel)


class _FromPython(ModelMetaclass):
    """Checks a model created by a call as a file is checked; pydantic creates models without calling their class."""

    from_python: Callable[[Mapping[str, Any]], Any]

    def __call__(cls, **values: Any) -> Any:
        return cls.from_python(values)


class Model(BaseModel, metaclass=_FromPython):
    """The base of every part: unknown keys are errors, fields cannot be changed, each field's doc sits under it.

    A part created in Python may hold classes and objects; raises ConfigError where it is wrong.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    @classmethod
    def from_python(cls, values: Mapping[str, Any]) -> Self:
        """Return the part with these values; raise ConfigError."""
        return check(cls, to_config(values), "")


@dataclass(frozen=True)
class Needs:
    """A setting of the experiment without which a field has no effect, such as `precision: fp16`."""

    setting: str

    def is_met(self, experiment: Model) -> bool:
        path, _, expected = self.setting.partition(": ")
        value: Any = experiment
        for key in path.split("."):
            value = getattr(value, key)
        return bool(value) if expected == "true" else value == expected


def check_needs(model: Model, experiment: Model, path: str = "") -> Iterator[Problem]:
    """Yield a problem for each field with another value than its default and an unmet need."""
    for name, field in type(model).model_fields.items():
        value, field_path = getattr(model, name), join(path, name)
        unmet = next((item for item in field.metadata if isinstance(item, Needs) and not item.is_met(experiment)), None)
        if unmet:
            for key in changed_keys(value, field.get_default(call_default_factory=True), field_path):
                yield Problem(key, f"has no effect without `{unmet.setting}`; remove it")
        elif isinstance(value, Model):
            yield from check_needs(value, experiment, field_path)


def changed_keys(value: Any, default: Any, path: str) -> Iterator[str]:
    """Yield the path of each key that differs from its default; models are compared field by field."""
    if isinstance(value, Model) and isinstance(default, Model):
        for name in type(value).model_fields:
            yield from changed_keys(getattr(value, name), getattr(default, name), join(path, name))
    elif value != default:
        yield path

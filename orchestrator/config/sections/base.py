"""The base of every part of an experiment file, and types that several parts use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from orchestrator.config.python.objects import to_config
from orchestrator.config.python.parameters import check
from orchestrator.config.text.reader import join
from orchestrator.errors import Problem, UsageError

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
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

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise UsageError(f"{name} cannot be changed; create a copy with model_copy(update={{'{name}': ...}})")
        super().__setattr__(name, value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, condition in _conditions(cls):
            text = properties[name].get("description", "")
            properties[name]["description"] = f"{text} Has no effect without `{condition.setting}`."
        return schema


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


def _conditions(model: type[BaseModel]) -> Iterator[tuple[str, Needs]]:
    for name, field in model.model_fields.items():
        yield from ((name, item) for item in field.metadata if isinstance(item, Needs))


def check_needs(model: Model, experiment: Model, path: str = "") -> Iterator[Problem]:
    """Yield a problem for each field with another value than its default and an unmet need."""
    unmet = {
        name: condition.setting for name, condition in _conditions(type(model)) if not condition.is_met(experiment)
    }
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if name in unmet:
            for key in changed_keys(value, field.get_default(call_default_factory=True), join(path, name)):
                yield Problem(key, f"has no effect without `{unmet[name]}`; remove it")
        elif isinstance(value, Model):
            yield from check_needs(value, experiment, join(path, name))


def changed_keys(value: Any, default: Any, path: str) -> Iterator[str]:
    """Yield the path of each key that differs from its default; models are compared field by field."""
    if isinstance(value, Model) and isinstance(default, Model):
        for name in type(value).model_fields:
            yield from changed_keys(getattr(value, name), getattr(default, name), join(path, name))
    elif value != default:
        yield path


def _as_list(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple):
        return value
    raise ValueError(f"must be a pattern or a list of patterns, got {value!r}")


Patterns = Annotated[
    list[str],
    Field(min_length=1),
    BeforeValidator(_as_list, json_schema_input_type=str | Annotated[list[str], Field(min_length=1)]),
]
"""A pattern of whole names, with * and ?, or several."""

"""Values of fields as a file holds them, and whether a class gets the same values back."""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any

import numpy
from pydantic import BaseModel, ValidationError

from hooks import Interval
from orchestrator.errors import shorten_value
from orchestrator.experiment.fields.model import create_fields_model
from orchestrator.experiment.fields.parameters import list_parameters, read_type_hints
from orchestrator.experiment.yaml.plain_values import to_plain, to_plain_data
from orchestrator.experiment.yaml.writer import explain_unwritable

_PLAIN_TYPES = (type(None), bool, int, float, str, Interval)
"""Types whose plain form always reads back as the same."""


class LostValue(ValueError):
    """A value that a class would not get back from a file."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


def convert_value(cls: type, name: str, value: Any) -> Any:
    """Return the plain data of a field's value.

    Raises LostValue if the class would get another value back.

    What the field's annotation makes of the value counts as the same: 1.0 of 1 for a float, a list
    of a tuple for a list.
    """
    model = _make_field_model(cls, name)
    try:
        written = _write(model, name, value)
    except Exception:  # pydantic's, or any that an object of the user's raises
        raise LostValue("cannot be saved as YAML") from None

    try:
        arrived = getattr(model.model_validate({name: written}), name)
    except ValidationError:
        if _is_valid(model, {name: value}):
            raise LostValue("cannot be saved as YAML") from None
        return written  # reported with the other wrong values
    except Exception as error:  # of the user's class, which pydantic passes on
        message = f"cannot be read back from YAML: {type(error).__name__}: {error}"
        raise LostValue(message) from None

    reason = explain_unwritable(written)
    if reason:
        raise LostValue(reason)
    if not _is_same(_coerce(model, name, value), arrived):
        raise LostValue(
            f"would arrive in the workers as {shorten_value(arrived)}",
            "annotate the field with the value's type, such as tuple[int, int] or dict[int, float]",
        )
    return written


def _write(model: type[BaseModel], name: str, value: Any) -> Any:
    """Return a value as a file holds it; raise an error if there is no such form."""
    dumped = model.model_construct(**{name: value}).model_dump(
        mode="json",
        warnings=False,
        fallback=to_plain,
    )
    return to_plain_data(dumped[name])


def is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    """Return whether a value is what the class sets itself."""
    try:
        default = _make_default(field)
    except Exception:  # the class cannot be made without a value
        return False
    return value is default or _is_same(value, default)


@cache
def has_lost_default(cls: type, name: str) -> bool:
    """Return whether the class would not get a field's default back from a file.

    Raises what the factory of the default raises.
    """
    default = _make_default(list_parameters(cls)[name])
    if default is dataclasses.MISSING:
        return False
    if type(default) in _PLAIN_TYPES:  # needs no model of pydantic, which takes a millisecond
        return explain_unwritable(default) is not None
    try:
        convert_value(cls, name, default)
    except LostValue:
        return True
    return False


def _make_default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@cache
def _make_field_model(cls: type, name: str) -> type[BaseModel]:
    return create_fields_model(cls, {name: (read_type_hints(cls)[name], ...)})


def _is_valid(model: type[BaseModel], values: Mapping[str, Any]) -> bool:
    try:
        model.model_validate(values, strict=True)
    except Exception:  # pydantic's, or of a validator of the user's
        return False
    return True


def _coerce(model: type[BaseModel], name: str, value: Any) -> Any:
    """Return what the annotation makes of a Python value, or the value if it refuses it."""
    try:
        return getattr(model.model_validate({name: value}, strict=False), name)
    except Exception:  # pydantic's, or of a validator of the user's
        return str(value) if isinstance(value, PurePath) else value


def _is_same(value: Any, other: Any) -> bool:
    """Compare values and their types, also within containers."""
    if isinstance(value, numpy.generic):
        value = value.item()
    if type(value) is not type(other):
        return False
    if isinstance(value, Mapping):
        return len(value) == len(other) and all(map(_is_same, value.items(), other.items()))
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(_is_same, value, other))
    if isinstance(value, set | frozenset):
        return bool(value == other) and {*map(type, value)} == {*map(type, other)}
    if dataclasses.is_dataclass(value) and not isinstance(value, Enum):
        return all(
            _is_same(getattr(value, field.name), getattr(other, field.name))
            for field in dataclasses.fields(value)
        )
    try:
        return bool(value == other or (value != value and other != other))
    except Exception:  # an object that cannot be compared
        return False

"""Errors of fields as pydantic finds them: where each is, and of which kind."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.errors import MISSING_KEY, UNKNOWN_KEY

Location = tuple[int | str, ...]
Detail = Mapping[str, Any]
"""One of pydantic's errors: type, input, and context."""

LIST_TYPES = ("list_type", "tuple_type", "set_type", "iterable_type")
MAPPING_TYPES = ("dict_type", "model_type", "model_attributes_type", "dataclass_type")
OBJECT_TYPES = ("is_instance_of", "is_subclass_of", "callable_type")
OWN_MESSAGE = "wrong_value"
"""Type of an error that has its own message."""

_CODES = {"extra_forbidden": UNKNOWN_KEY, "missing": MISSING_KEY}

_BRANCHES = ("one", "list", "word", "group")
"""Tags of unions whose branch depends on the kind of value alone."""


@dataclass(frozen=True)
class FieldError:
    """The error of one value; several details are those of the branches of a union."""

    location: Location
    details: tuple[Detail, ...]

    @property
    def code(self) -> str:
        """The kind of the error, whatever the value; empty for an error with its own message."""
        types = [detail["type"] for detail in self.details]
        if types[0] in _CODES:
            return _CODES[types[0]]
        if {"value_error", OWN_MESSAGE}.intersection(types):
            return ""
        return " or ".join(types)


def make_value_error(key: str, message: str) -> PydanticCustomError:
    """Return an error about a key of a model, to raise where the model is checked as a whole."""
    return PydanticCustomError(OWN_MESSAGE, "{message}", {"key": key, "message": message})


def find_field_errors(error: ValidationError, values: Any) -> list[FieldError]:
    """Return pydantic's errors of `values`, one for each location."""
    by_location: dict[Location, list[Detail]] = {}
    for detail in error.errors(include_url=False):
        by_location.setdefault(locate_error(detail, values), []).append(detail)
    return [
        FieldError(location, tuple(_select_relevant(details)))
        for location, details in by_location.items()
    ]


def locate_error(detail: Detail, values: Any) -> Location:
    """Return the part of an error's location that is in the data, without unions' branches."""
    location: list[int | str] = []
    for part in detail["loc"]:
        if _is_branch(part, values):
            continue
        if detail["type"] not in _CODES and not _has(values, part):
            break
        location.append(part)
        values = get_child(values, part)
    if detail["type"] == OWN_MESSAGE and detail["ctx"]["key"]:
        location.append(detail["ctx"]["key"])
    return tuple(location)


def _is_branch(part: int | str, values: Any) -> bool:
    """Return whether a part of a location names the branch of a union instead of a key."""
    if not isinstance(values, dict):
        return part in _BRANCHES
    return part not in values and (part in _BRANCHES or values.get("type") == part)


def _has(values: Any, part: int | str) -> bool:
    """Return whether a part of a location leads to a value."""
    if isinstance(values, dict):
        return part in values
    return isinstance(values, list) and isinstance(part, int)


def get_child(values: Any, part: int | str) -> Any:
    """Return a value inside a mapping or a list, or None."""
    if isinstance(values, list) and isinstance(part, int) and part < len(values):
        return values[part]
    if isinstance(values, dict):
        return values.get(part)
    return None


def _select_relevant(details: Sequence[Detail]) -> Sequence[Detail]:
    """Return the errors of the branches of a union that the value may have been meant for."""
    kinds = {detail["type"] for detail in details}
    lengths = kinds & {"too_short", "too_long"}
    if lengths:  # it is a list, so not a wrong string
        return [detail for detail in details if detail["type"] in lengths]

    # A value outside a branch's range was not meant to be a list.
    is_out_of_range = any(
        not kind.endswith(("_type", "_from_float")) for kind in kinds.difference(OBJECT_TYPES)
    )
    others = (*OBJECT_TYPES, *LIST_TYPES) if is_out_of_range else OBJECT_TYPES
    return [detail for detail in details if detail["type"] not in others] or details


# Nulls


def without_refused_nulls(error: ValidationError, values: Any) -> Any:
    """Return the values without the keys whose null is an error: null there means the default."""
    rest = deepcopy(values)
    for detail in error.errors(include_url=False):
        location = locate_error(detail, values)
        if location and detail["input"] is None and detail["type"] != "extra_forbidden":
            *above, key = location
            owner = reduce(get_child, above, rest)
            if isinstance(owner, dict):
                owner.pop(key, None)
    return rest

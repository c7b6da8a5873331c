"""Values of JSON files, converted to types and checked."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def validate(value: Any, kind: type[T], path: str = "") -> T:
    """Convert a JSON value to a type.

    Args:
        value: A value as `parse_json` returns it.
        kind: A dataclass, an enum, or a type such as `dict[str, Any]`. Entries that a dataclass
            does not have are dropped.
        path: Path of the value in its file, for the message; empty for the whole file.

    Raises:
        ValueError: The value does not fit, with the path of the first entry that does not.
    """
    from pydantic import ValidationError  # a slow import

    try:
        adapter = _make_adapter(kind)  # type: ignore[arg-type]  # mypy takes classes for unhashable
        validated: T = adapter.validate_json(json.dumps(value), strict=True)
        return validated
    except ValidationError as error:
        raise ValueError(_describe(error.errors(include_url=False)[0], path)) from None


def check_mapping(value: Any) -> dict[str, Any]:
    """Validate and return a JSON mapping; raises ValueError for any other value."""
    return validate(value, dict[str, Any])


@cache
def _make_adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _describe(error: Any, path: str) -> str:
    path = _join([path, *error["loc"]])
    if error["type"] == "missing":
        return f"it has no `{path}`"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    value = repr(error["input"])
    value = value if len(value) < 60 else f"{value[:57]}..."
    message = f"{error['msg'][0].lower()}{error['msg'][1:]}, got {value}"
    return f"`{path}`: {message}" if path else message


def _join(keys: Sequence[str | int]) -> str:
    """Return the path of nested keys: `hosts[0].device`."""
    path = ""
    for key in keys:
        if isinstance(key, int):
            path += f"[{key}]"
        elif key:
            path += f".{key}" if path else key
    return path

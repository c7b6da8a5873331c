"""Pydantic models of what a file may say: numbers are strict, and a list may stand for a tuple."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, create_model

_NUMBERS = ("bool", "int", "float")
_UNCHANGED = ("keys_schema", "default", "expected", "metadata", "serialization")
"""Parts of a schema that are values, and the keys of a mapping, which a file writes as text."""


def _make_numbers_strict(schema: Any, handler: GetCoreSchemaHandler, visited: set[int]) -> None:
    if id(schema) in visited:
        return
    visited.add(id(schema))

    if isinstance(schema, list | tuple):
        for item in schema:
            _make_numbers_strict(item, handler, visited)
    if not isinstance(schema, dict):
        return

    if schema.get("type") in _NUMBERS:
        schema["strict"] = True
    if schema.get("type") == "definition-ref":
        _make_numbers_strict(handler.resolve_ref_schema(schema), handler, visited)
    # Without a type it is a mapping of names to schemas, and `default` may be a name.
    unchanged = _UNCHANGED if isinstance(schema.get("type"), str) else ()
    for key, part in schema.items():
        if key not in unchanged:
            _make_numbers_strict(part, handler, visited)


class FileModel(BaseModel):
    """A model that reads plain data, as a file holds it.

    A number in quotes is a string, and `true` is not a number. All other types are converted: a
    tuple or a set is written as a list, an enum as its value, a path as text.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = handler(source)
        _make_numbers_strict(schema, handler, set())
        return schema


class _Fields(FileModel):
    model_config = ConfigDict(
        extra="forbid",
        arbitrary_types_allowed=True,
        protected_namespaces=(),
        ser_json_inf_nan="constants",
    )


class _OpenFields(_Fields):
    model_config = ConfigDict(extra="allow")


def create_fields_model(
    cls: Callable[..., Any], fields: Mapping[str, Any], extra: Literal["forbid", "allow"] = "forbid"
) -> type[BaseModel]:
    """Return a pydantic model of fields, each with its type and its default."""
    base = _OpenFields if extra == "allow" else _Fields
    with warnings.catch_warnings():
        # A parameter may be called `copy` or `json`, as BaseModel's methods are.
        warnings.simplefilter("ignore")
        return create_model(cls.__name__, __base__=base, __module__=cls.__module__, **fields)

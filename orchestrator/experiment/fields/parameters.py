"""The parameters of a class, which are the fields that a config may set: names, types and docs."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints


def list_parameters(cls: type) -> Mapping[str, dataclasses.Field[Any]]:
    """Return the fields of a dataclass that a config may set, by name."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return {field.name: field for field in fields if field.init and not field.name.startswith("_")}


@cache
def read_type_hints(cls: type) -> dict[str, Any]:
    """Return the annotations of a class's fields, evaluated."""
    return get_type_hints(cls, include_extras=True)


def get_field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field, inherited ones included."""
    docs: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        docs.update(_get_own_field_docs(parent))
    return docs


@cache
def _get_own_field_docs(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    match tree.body:
        case [ast.ClassDef(body=body)]:
            return dict(_find_docs(body))
    return {}


def _find_docs(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the name of each field of a class with a docstring below it, and the docstring."""
    for pair in pairwise(body):
        match pair:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)

"""Pydantic models of the parameters of a dataclass, and of the arguments of a class or function."""

import collections.abc
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import GenericAlias
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.model import create_fields_model
from orchestrator.experiment.fields.parameters import list_parameters, read_type_hints
from orchestrator.user_code.failures import catch_user_errors


def make_fields_model(cls: type, path: str = "") -> type[BaseModel]:
    """Return a pydantic model with a dataclass's fields: types, constraints and defaults.

    `get_field_docs` gives their docs, as reading a class's source takes longer than all the rest.
    Raises ConfigError at `path` for a class whose fields cannot be read.
    """
    name = f"{cls.__module__}.{cls.__qualname__}"
    with catch_user_errors(path, f"the fields of {name} cannot be read"):
        declared = _list_plain_annotations(cls)
        if declared:
            message = f"{name} declares {', '.join(declared)} but is not a dataclass"
            raise ConfigError.at(path, message, "put @dataclass above the class")
        return _make_fields_model(cls)


def _list_plain_annotations(cls: type) -> list[str]:
    """Return the fields that a class declares without being a dataclass itself."""
    if "__dataclass_fields__" in vars(cls):
        return []
    annotations = inspect.get_annotations(cls)
    return [name for name, hint in annotations.items() if "ClassVar" not in str(hint)]


@cache
def _make_fields_model(cls: type) -> type[BaseModel]:
    hints = read_type_hints(cls)
    return create_fields_model(
        cls, {name: (hints[name], field) for name, field in list_parameters(cls).items()}
    )


@cache
def make_signature_model(
    cls: Callable[..., Any], skip: int = 1, extra_keys: tuple[str, ...] = ()
) -> type[BaseModel]:
    """Return a pydantic model of the arguments of a class or function.

    The model has the arguments after the first `skip`, and `extra_keys`. An argument without
    annotation takes the type of its default if that is a number.
    """
    arguments = list(inspect.signature(cls).parameters.values())[skip:]
    function = cls
    if isinstance(cls, type):
        # Mypy warns of subclasses with another `__init__`, but this is the one that is called.
        function = cls.__init__  # type: ignore[misc]
    hints = evaluate_annotations(function)
    fields: dict[str, Any] = dict.fromkeys(extra_keys, (Any, None))
    for argument in arguments:
        is_named = argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)
        # The position of a scheduler is restored from a checkpoint.
        if is_named and argument.name != "last_epoch":
            fields[argument.name] = _describe_argument(argument, hints)
    if any(argument.kind is argument.VAR_KEYWORD for argument in arguments):
        return create_fields_model(cls, fields, extra="allow")
    return create_fields_model(cls, fields)


def _describe_argument(argument: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the type and the default of an argument."""
    default = ... if argument.default is argument.empty else argument.default
    default_type = type(default) if type(default) in (int, float) else Any
    hint = hints.get(argument.name, default_type)
    if get_origin(hint) is collections.abc.Iterable:
        # Pydantic would check its elements only when they are used.
        hint = GenericAlias(list, get_args(hint))
    return hint, default


def evaluate_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function as types; empty if one cannot be evaluated."""
    try:
        return get_type_hints(function, localns=vars(collections.abc), include_extras=True)
    except Exception:  # annotations are evaluated here and may name anything
        return {}

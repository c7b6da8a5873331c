"""Classes, hooks and parts of an experiment made in Python, as the data of a file."""

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import torch.optim.swa_utils
from pydantic import BaseModel
from torch.optim import Optimizer

from hooks import HOOKS, Hook, Interval
from hooks.errors import add_article
from orchestrator.errors import (
    ConfigError,
    Problem,
    collect_problems,
    raise_problems,
    shorten_value,
)
from orchestrator.experiment.fields.class_models import make_fields_model
from orchestrator.experiment.fields.field_values import LostValue, convert_value, is_default
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.experiment.yaml.plain_values import to_plain
from orchestrator.experiment.yaml.writer import explain_unwritable

_OPTIM = (torch.optim, torch.optim.lr_scheduler, torch.optim.swa_utils)

Convert = Callable[[Any, str], Any]
"""Converts the value at a path to plain data, or raises ConfigError."""


def to_config(value: Any, path: str = "") -> Any:
    """Convert values and parts of an experiment, even in mappings and lists, to plain data.

    Raises ConfigError with the path of each value that a file cannot hold.
    """
    match value:
        case BaseModel():
            return _dump(value)
        case Mapping() | list() | tuple():
            return convert_all(value, path, to_config)
        case _:
            return _convert_scalar(value, path, "a value that YAML can hold")


def to_entry(value: Any, path: str = "", *, with_defaults: bool = True) -> Any:
    """Convert an optimizer, a scheduler or a hook to its entry, also in mappings and lists.

    A class is written as `{type: NAME}`, and beside the arguments of an entry as its name.
    Raises ConfigError.

    Args:
        value: A class, a hook, or an entry that may have classes in it.
        path: Where it was given.
        with_defaults: Write the fields of a hook that have their default.
    """
    convert = partial(to_entry, with_defaults=with_defaults)
    match value:
        case type():
            return {"type": to_class_name(value, path)}
        case Hook():
            return to_hook_entry(value, path, with_defaults=with_defaults)
        case Mapping():
            return convert_by_key(value, path, lambda key: to_type if key == "type" else convert)
        case list() | tuple():
            return convert_all(value, path, convert)
        case BaseModel():
            return _dump(value)
        case _:
            return _convert_scalar(value, path, "a class or a value that YAML can hold")


def to_hook_entry(hook: Hook, path: str, *, with_defaults: bool) -> dict[str, Any]:
    """Return the entry of a hook: its class, its fields, and its own priority.

    Raises ConfigError.
    """
    fields = convert_fields(hook, path, with_defaults=with_defaults)
    entry = {"type": to_class_name(type(hook), path), **fields}
    return {**entry, "priority": int(hook.priority)} if "priority" in vars(hook) else entry


def to_type(value: Any, path: str) -> Any:
    """Convert the `type` of an entry, which may be a class; raise ConfigError."""
    return to_class_name(value, path) if isinstance(value, type) else to_config(value, path)


def convert_all(values: Any, path: str, convert: Convert) -> Any:
    """Convert each value of a mapping or a list; raise ConfigError with all problems."""
    return convert_by_key(values, path, lambda _: convert)


def convert_by_key(values: Any, path: str, choose: Callable[[Any], Convert]) -> Any:
    """Convert each value of a mapping or a list as `choose` says for its key.

    Anything else is converted as it is. Raises ConfigError with all problems.
    """
    if isinstance(values, Mapping):
        reason = explain_unwritable(dict.fromkeys(values))
        if reason:
            raise ConfigError.at(path, reason)
        return _convert_items(values.items(), path, choose)
    if isinstance(values, list | tuple):
        return [*_convert_items(enumerate(values), path, choose).values()]
    return to_config(values, path)


def _convert_items(
    items: Iterable[tuple[Any, Any]], path: str, choose: Callable[[Any], Convert]
) -> dict[Any, Any]:
    problems: list[Problem] = []
    converted = {
        key: collect_problems(problems, choose(key), value, join(path, key)) for key, value in items
    }
    raise_problems(problems)
    return converted


def _dump(part: BaseModel) -> dict[str, Any]:
    """Return a part of an experiment as it was written."""
    written = part.model_dump(mode="json", exclude_unset=True)
    if "type" in type(part).model_fields:
        # mypy knows no `type` of a BaseModel.
        written["type"] = getattr(part, "type")  # noqa: B009
    return written


def convert_fields(value: Any, path: str, *, with_defaults: bool = True) -> dict[str, Any]:
    """Convert the parameters of a dataclass instance, with or without defaults.

    Raises ConfigError.
    """
    cls = type(value)
    if not is_dataclass(cls):
        if not vars(value):
            return {}
        raise ConfigError.at(
            path,
            f"is {add_article(cls.__qualname__)}, which is not a dataclass",
            "put @dataclass above it",
        )
    make_fields_model(cls, path)  # raises ConfigError for fields that cannot be read
    problems: list[Problem] = []
    config = {}
    for name, field in list_parameters(cls).items():
        item = getattr(value, name)
        if not with_defaults and is_default(item, field):
            continue
        try:
            config[name] = convert_value(cls, name, item)
        except LostValue as error:
            if is_default(item, field):  # the class sets it itself
                continue
            message = f"{error}, got {shorten_value(item)}"
            problems.append(Problem(join(path, name), message, suggestion=error.suggestion))
    raise_problems(problems)
    return config


def to_class_name(cls: type, path: str) -> str:
    """Return the name of a class in HOOKS or torch.optim, else `module:Class`.

    Raises ConfigError.
    """
    hook = HOOKS.name_of(cls)
    if hook:
        return hook
    name = cls.__qualname__
    module = cls.__module__
    if any(getattr(namespace, name, None) is cls for namespace in _OPTIM):
        return name
    if "." in name:
        reason = "where neither workers nor a resume can import it"
        raise ConfigError.at(
            path,
            f"{name} is defined within a function or a class, {reason}",
            "define it at the top level of its module, script or notebook",
        )
    if getattr(sys.modules.get(module), name, None) is not cls:
        raise ConfigError.at(
            path,
            f"is an older {name} than '{module}:{name}', which was defined again",
            "create objects of the new class",
        )
    return f"{module}:{name}"


def _convert_scalar(value: Any, path: str, expected: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        reason = explain_unwritable(value)
        if reason:
            raise ConfigError.at(path, f"{reason}, got {shorten_value(value)}")
        return value
    if isinstance(value, Interval):
        return str(value)
    with suppress(TypeError, ValueError, RuntimeError):
        return to_plain(value)
    hint = None
    if isinstance(value, Optimizer):
        hint = "write its class and arguments: {'type': SGD, 'lr': 0.1}"
    raise ConfigError.at(path, f"must be {expected}, got {shorten_value(value)}", hint)

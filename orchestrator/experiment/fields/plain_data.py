"""Classes and objects in an experiment made in Python, as the data of a file."""

import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any

import torch.optim.swa_utils
from pydantic import BaseModel
from torch.optim import Optimizer

from hooks import HOOKS, Hook, Interval
from hooks.errors import add_article
from orchestrator.errors import ConfigError, Problem, collect_problems, raise_problems, shorten
from orchestrator.experiment.fields.class_models import make_fields_model
from orchestrator.experiment.fields.field_values import LostValue, convert_value, is_default
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.experiment.yaml.plain_values import to_plain
from orchestrator.experiment.yaml.writer import explain_unwritable
from orchestrator.task import Task

_OPTIM = (torch.optim, torch.optim.lr_scheduler, torch.optim.swa_utils)
_DOMAIN_SUFFIX = re.compile(r"(\.(choice|grid|\d+))+$")
"""End of the path of a value in a sweep's domain."""


def to_config(value: Any, path: str = "") -> Any:
    """Convert classes, hooks and parts of an experiment, even in mappings and lists, to plain data.

    Raises ConfigError with the path of each value that a file cannot hold.
    """
    match value:
        case type():
            name = get_class_path(value, path)
            key = _DOMAIN_SUFFIX.sub("", path).rpartition(".")[2]
            return name if key in ("task", "type") else {"type": name}
        case Hook():
            priority: dict[str, Any] = (
                {"priority": int(value.priority)} if "priority" in vars(value) else {}
            )
            # A field that a domain's value leaves at its default may be swept by a path of its own.
            fields = convert_fields(value, path, defaults=not _DOMAIN_SUFFIX.search(path))
            return {"type": get_class_path(type(value), path), **fields, **priority}
        case BaseModel():
            written = value.model_dump(mode="json", exclude_unset=True)
            if "type" in type(value).model_fields:
                # mypy knows no `type` of a BaseModel.
                written["type"] = getattr(value, "type")  # noqa: B009
            return written
        case Mapping():
            reason = explain_unwritable(dict.fromkeys(value))
            if reason:
                raise ConfigError.at(path, reason)
            return _convert_all(value.items(), path)
        case list() | tuple():
            return [*_convert_all(enumerate(value), path).values()]
        case _:
            return _convert_scalar(value, path)


def convert_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of an experiment; the fields of a task instance become its arguments.

    Raises ConfigError with the path of each value that a file cannot hold.
    """
    problems: list[Problem] = []
    others = {name: value for name, value in values.items() if name != "task"}
    data = collect_problems(problems, to_config, others) or {}
    task = None
    if values.get("task") is not None:
        task = collect_problems(problems, convert_task, values["task"])
    if task and "task_args" in task and "task_args" in values:
        problems.append(
            Problem("task_args", "has no effect with a task instance; set its fields instead")
        )
    raise_problems(problems)
    return {**(task or {}), **data}


def convert_task(task: Any) -> dict[str, Any]:
    """Convert a task, its class or its class's import path to `task` and `task_args`.

    Raises ConfigError.
    """
    match task:
        case str():
            return {"task": task}
        case type() if issubclass(task, Task):
            return {"task": get_class_path(task, "task")}
        case Task():
            return {
                "task": get_class_path(type(task), "task"),
                "task_args": convert_fields(task, "task_args"),
            }
    raise ConfigError.at(
        "task", f"must be a task, its class, or 'module:Class', got {_shorten(task)}"
    )


def convert_fields(value: Any, path: str, *, defaults: bool = True) -> dict[str, Any]:
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
        if not defaults and is_default(item, field):
            continue
        try:
            config[name] = convert_value(cls, name, item)
        except LostValue as error:
            if is_default(item, field):  # the class sets it itself
                continue
            message = f"{error}, got {_shorten(item)}"
            problems.append(Problem(join(path, name), message, suggestion=error.suggestion))
    raise_problems(problems)
    return config


def get_class_path(cls: type, path: str) -> str:
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


def _convert_all(items: Iterable[tuple[Any, Any]], path: str) -> dict[Any, Any]:
    problems: list[Problem] = []
    converted = {
        key: collect_problems(problems, to_config, value, join(path, key)) for key, value in items
    }
    raise_problems(problems)
    return converted


def _convert_scalar(value: Any, path: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        reason = explain_unwritable(value)
        if reason:
            raise ConfigError.at(path, f"{reason}, got {_shorten(value)}")
        return value
    if isinstance(value, Interval):
        return str(value)
    with suppress(TypeError, ValueError, RuntimeError):
        return to_plain(value)
    hint = None
    if isinstance(value, Optimizer):
        hint = "write its class and arguments: {'type': SGD, 'lr': 0.1}"
    raise ConfigError.at(
        path, f"must be a class or a value that YAML can hold, got {_shorten(value)}", hint
    )


def _shorten(value: Any) -> str:
    return shorten(" ".join(repr(value).split()))

"""Classes and objects in an experiment that is made in Python: what a file would say of them. Driver."""

from __future__ import annotations

import inspect
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.optim.swa_utils
from pydantic import BaseModel
from torch.optim import Optimizer

from hooks import HOOKS, Hook, Interval
from orchestrator.config.python.imports import MAIN
from orchestrator.config.python.parameters import fields_model, parameters
from orchestrator.config.text.reader import join
from orchestrator.config.text.source import plain
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.task import Task

_OPTIM = (torch.optim, torch.optim.lr_scheduler, torch.optim.swa_utils)
_IN_A_DOMAIN = re.compile(r"(\.(choice|grid|\d+))+$")
"""What stands behind the path that is swept where a value is one of a domain's."""
_SHOWN = 80
"""Characters of a value that an error shows."""


def to_config(value: Any, path: str = "") -> Any:
    """What a file would say: a class by its name, a hook or a part of an experiment by its fields, mappings and lists
    of these.

    Raises ConfigError with each value, by the path at which it stands, that no file can say.
    """
    match value:
        case type():
            name = name_of(value, path)
            key = _IN_A_DOMAIN.sub("", path).rpartition(".")[2]
            return name if key in ("task", "type") else {"type": name}
        case Hook():
            changed: dict[str, Any] = {"priority": int(value.priority)} if "priority" in vars(value) else {}
            # Of a domain's value, what it leaves unsaid may be swept by a path of its own.
            fields = fields_of(value, path, defaults=not _IN_A_DOMAIN.search(path))
            return {"type": name_of(type(value), path), **fields, **changed}
        case BaseModel():
            tag = {"type": value.type} if "type" in type(value).model_fields else {}  # type: ignore[attr-defined]  # not every model has one; it was asked
            return tag | value.model_dump(mode="json", exclude_unset=True)
        case Mapping():
            return dict(_each(value.items(), path))
        case list() | tuple():
            return [one for _, one in _each(enumerate(value), path)]
        case _:
            return _scalar(value, path)


def task_to_config(task: Any) -> dict[str, Any]:
    """What a file would say of a task, of its class or of its class's path. Raises ConfigError."""
    match task:
        case str():
            return {"task": task}
        case type() if issubclass(task, Task):
            return {"task": name_of(task, "task")}
        case Task():
            return {"task": name_of(type(task), "task"), "task_args": fields_of(task, "task_args")}
    raise _wrong("task", f"must be a task, its class, or 'module:Class', got {_shown(task)}")


def fields_of(made: Any, path: str, *, defaults: bool = True) -> dict[str, Any]:
    """The parameters of a dataclass's object, as a file would say them, those that have their `defaults` too or not;
    raises ConfigError."""
    cls = type(made)
    if not is_dataclass(cls):
        if not vars(made):
            return {}
        message = (
            f"is an object of {cls.__qualname__}, which is no dataclass, so that what it was made with is not known"
        )
        raise _wrong(path, message, "put @dataclass above the class")
    model = fields_model(cls, path)
    problems: list[Problem] = []
    written = {}
    for name, field in parameters(cls).items():
        value = getattr(made, name)
        if not defaults and value == _default(field):
            continue
        try:
            told = model.model_construct(**{name: value}).model_dump(
                mode="json", include={name}, warnings=False, fallback=plain
            )
            written[name] = told[name]
        except Exception:  # pydantic's, or whatever an object of the user's raises as it is written
            if value is not field.default:  # which the class gives itself
                problems.append(Problem(join(path, name), f"must be what a file can say, got {_shown(value)}"))
    if problems:
        raise ConfigError(problems)
    return written


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def name_of(cls: type, path: str) -> str:
    """What a file calls a class: by its name in HOOKS or torch.optim, else `module:Class`; raises ConfigError where
    nothing is found by that."""
    for name, hook in HOOKS.items():
        if hook is cls:
            return name
    name, module = cls.__qualname__, cls.__module__
    if any(getattr(home, name, None) is cls for home in _OPTIM):
        return name
    if "." in name:
        message = f"{name} is defined within a function or a class, where no other process finds it"
        raise _wrong(path, message, "define it at the top level of its module")
    if getattr(sys.modules.get(module), name, None) is not cls:
        message = f"is not the {name} that '{module}:{name}' names by now"
        raise _wrong(path, message, "where it was defined again, make objects of the new one")
    return f"{module}:{name}"


def folders_of(written: Any) -> list[Path]:
    """The folders from which the classes that are named can be imported, but for those in which packages are
    installed."""
    modules = [sys.modules.get(module) for _, module, _ in _classes_named(written)]
    folders = dict.fromkeys(_folder(module) for module in modules if module)
    return [folder for folder in folders if folder]


def find_main_classes(written: Any) -> dict[str, type]:
    """The classes that are named of the script or notebook itself, which no other process can import."""
    known = vars(sys.modules[MAIN])
    return {name: known[name] for _, module, name in _classes_named(written) if module == MAIN and name in known}


def main_source_code(written: Any) -> str:
    """The source of these classes, and of those of the script or notebook that they are made from; empty where there
    are none, or it is not known."""
    lineage = [
        base for cls in find_main_classes(written).values() for base in reversed(cls.__mro__) if base.__module__ == MAIN
    ]
    return "\n\n".join(filter(None, map(_code, dict.fromkeys(lineage))))


def _code(cls: type) -> str | None:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # it was made without a file or a cell
        return None


def _classes_named(written: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Path, module and name of each class that a text names as `module:Class`."""
    if isinstance(written, str):
        module, colon, name = written.partition(":")
        if colon and name.isidentifier():
            yield path, module, name
        return
    items = written.items() if isinstance(written, Mapping) else enumerate(written) if isinstance(written, list) else ()
    for key, value in items:
        yield from _classes_named(value, join(path, key))


def _folder(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == MAIN:
        return None
    place = Path(file).absolute()
    if any(place.is_relative_to(installed) for installed in sysconfig.get_paths().values()):
        return None
    levels = module.__name__.count(".") + (place.stem == "__init__")
    return place.parents[levels]


def _each(items: Iterable[tuple[Any, Any]], path: str) -> list[tuple[Any, Any]]:
    problems: list[Problem] = []
    made = [(key, collect_problems(problems, to_config, value, join(path, key))) for key, value in items]
    if problems:
        raise ConfigError(problems)
    return made


def _scalar(value: Any, path: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Interval):
        return str(value)
    try:
        return plain(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    if isinstance(value, Optimizer):
        message = f"must be the class and its arguments, got the optimizer of one model, {type(value).__name__}"
        raise _wrong(path, message, f"write {{'type': {type(value).__name__}, 'lr': ...}}")
    raise _wrong(path, f"must be what a file can say, or a class, got {_shown(value)}")


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _wrong(path: str, message: str, suggestion: str | None = None) -> ConfigError:
    return ConfigError([Problem(path, message, suggestion=suggestion)])

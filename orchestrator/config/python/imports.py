"""Finds the class that a config names: in a table, at an entry point, or as `module:Class`."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from types import ModuleType
from typing import Any, TypeVar

from hooks.import_path import NoSuchModule, hidden_module, import_named
from orchestrator.config.python.user_code import users_code
from orchestrator.errors import ConfigError, Problem, did_you_mean

T = TypeVar("T")

MAIN = "__main__"
"""The module of a script and of a notebook, by which no other process knows it."""

_IMPORT_PATH = re.compile(r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$")


def define_in_main(classes: bytes | None) -> None:
    """Puts the classes of a driver's script or notebook where this process looks for those that are named so. Worker
    process."""
    if classes:
        vars(import_named(MAIN)).update(pickle.loads(classes))


def find_class(
    name: str,
    base: type[T],
    table: Mapping[str, type[T]],
    path: str = "",
    group: str | None = None,
    others: Iterable[str] = (),
) -> type[T]:
    """The class called `name`: in `table`, an installed entry point of `group`, or `module:Class`.

    What is found must be a subclass of `base`; where nothing is, `others` are suggested beside the names of the table.
    Raises ConfigError at `path` when there is none, when its module cannot be imported, or when it is something else.
    Imports the module; evaluates nothing.
    """
    with users_code(path, f"'{name}' cannot be looked at"):
        found = (
            table.get(name)
            or (group and _at_entry_point(name, path, group))
            or _imported(name, base, table, path, others)
        )
        if not (isinstance(found, type) and issubclass(found, base)):
            raise _wrong(
                path, f"'{name}' is no subclass of {base.__module__}.{base.__qualname__}, but {_described(found)}"
            )
        return found


def _at_entry_point(name: str, path: str, group: str) -> Any:
    for point in _installed(group).select(name=name):
        with users_code(path, f"entry point '{name}' ({point.value}) cannot be loaded"):
            return point.load()
    return None


@cache
def _installed(group: str) -> EntryPoints:
    """What is installed, which is found by reading the metadata of all packages."""
    return entry_points(group=group)


def _imported(name: str, base: type[Any], table: Mapping[str, Any], path: str, others: Iterable[str]) -> Any:
    if not _IMPORT_PATH.match(name):
        known = f"one of {', '.join(sorted(table))}, or " if table else ""
        message = f"there is no {base.__name__.removeprefix('LR').lower()} '{name}'; allowed: {known}module:Class"
        near = did_you_mean(name, {*table, *others} - {name})
        raise _wrong(path, message, near or _as_import_path(name))
    module_name, _, class_name = name.partition(":")
    module = _module(module_name, path)
    if not hasattr(module, class_name):
        classes = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
        message = f"module '{module_name}' ({getattr(module, '__file__', 'built into Python')}) has no '{class_name}'"
        has = f"it has {', '.join(classes)}" if classes else None
        if module_name == MAIN:
            has = "what a script or a notebook defines is known in its own process alone: go on from there"
        raise _wrong(path, message, hidden_module(module_name) or did_you_mean(class_name, classes) or has)
    return getattr(module, class_name)


def _module(name: str, path: str) -> ModuleType:
    with users_code(path, f"module '{name}' cannot be imported"):
        try:
            return import_named(name)
        except NoSuchModule as error:
            raise _wrong(path, str(error)) from None


def _as_import_path(name: str) -> str | None:
    """For `pack.module.Class` and `pack/module.py:Class`, what was probably meant."""
    file, colon, class_name = name.partition(".py:")
    if colon:
        return f"write it as '{file.strip('./').replace('/', '.')}:{class_name}'"
    module, dot, last = name.rpartition(".")
    return f"write it as '{module}:{last}'" if dot and _IMPORT_PATH.match(f"{module}:{last}") else None


def _described(found: Any) -> str:
    return (
        f"the class {found.__module__}.{found.__qualname__}" if isinstance(found, type) else f"a {type(found).__name__}"
    )


def _wrong(path: str, message: str, suggestion: str | None = None) -> ConfigError:
    return ConfigError([Problem(path, message, suggestion=suggestion)])

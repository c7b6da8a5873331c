"""Names of a task that have no effect and are near one that has: probable misspellings."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from linecache import getlines
from typing import Any

from orchestrator.config.checks.key_paths import key_paths
from orchestrator.config.python.user_code import source_location
from orchestrator.errors import Problem
from orchestrator.task import Task

_METHODS = tuple(name for name in vars(Task) if not name.startswith("_") and name != "progress")
_COMMON_NAMES = ("name", "notes", "tags")
"""Keys without effect on training, which attributes of a task may be called too."""


def misspelled_names(task: type[Task]) -> list[Problem]:
    """Return a problem for each method and option of a task that has no effect and is near one that has.

    A name that the source of the task's modules mentions again is a helper, and one that begins with `_` is private.
    """
    problems = []
    modules = {cls.__module__ for cls in task.__mro__ if issubclass(cls, Task) and cls is not Task}
    for name, value in dict(_own_names(task, modules)).items():
        meant = _nearest(name, callable(value))
        if meant is None or _is_used(name, modules):
            continue
        message = f"{task.__name__}.{name}{'()' if callable(value) else ''} has no effect: nothing calls or reads it"
        hint = "? A helper's name may begin with _" if meant in _METHODS else ", a key of the experiment?"
        place = source_location(value) if callable(value) else ""
        problems.append(Problem("task", f"{message}{place}", suggestion=f"did you mean '{meant}'{hint}"))
    return problems


def _own_names(task: type[Task], modules: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the methods and plain values that the user's classes define, those of mixins beside them too."""
    plain: Any = bool | int | float | str | list | tuple | dict | None
    for cls in task.__mro__:
        if cls.__module__ in modules and cls is not Task:
            for name, value in vars(cls).items():
                value = getattr(value, "__func__", value)
                if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, plain)):
                    yield name, value


def _nearest(name: str, is_method: bool) -> str | None:
    if name in _METHODS:
        return None
    near = get_close_matches(name, _METHODS, n=1, cutoff=0.75)
    if near or is_method:
        return near[0] if near else None
    keys = {path.rpartition(".")[2]: path for path in reversed(key_paths())}
    prefixed = [key for key in keys if "_" in name and key.startswith(f"{name}_")]
    close = [] if name in _COMMON_NAMES else prefixed or get_close_matches(name, keys, n=1, cutoff=0.8)
    return keys[close[0]] if close else None


def _is_used(name: str, modules: set[str]) -> bool:
    """Return whether the modules of a task mention a name again, beside its definition, or have no file to look in."""
    mentions = 0
    for module in modules & sys.modules.keys():
        file = vars(sys.modules[module]).get("__file__")
        if file is None:  # a notebook
            return True
        mentions += len(re.findall(rf"\b{re.escape(name)}\b", "".join(getlines(file))))
    return mentions > 1

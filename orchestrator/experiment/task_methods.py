"""Checks of the methods of a task: those that are missing, misspelled or take other arguments."""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import chain
from linecache import getlines

from orchestrator.errors import ConfigError, Problem
from orchestrator.task import Task
from orchestrator.user_code.failures import find_source_location

_METHODS = tuple(name for name in vars(Task) if not name.startswith("_") and name != "progress")
_MORE_ARGUMENTS = ("train", "optimizer", "scheduler")
"""Methods that get other arguments from keys of the experiment."""


def check_required_methods(task: type[Task]) -> None:
    """Raise ConfigError if a task lacks a method that it must define."""
    missing = sorted(task.__abstractmethods__)
    if not missing:
        return
    names = ", ".join(f"{name}()" for name in missing)
    near_names = [pair for pair in _find_near_names(task) if pair[1] in missing]
    renamed = " and ".join(f"{name}() to {near}()" for name, near in near_names)
    suggestion = f"rename {renamed}" if renamed else None
    raise ConfigError.at("task", f"{task.__name__} must define {names}", suggestion)


def find_wrong_arguments(task: Task) -> Iterator[Problem]:
    """Yield a problem for each method of a task that does not take the loop's arguments."""
    for name in _METHODS:
        method = getattr(task, name)
        declared = getattr(Task, name)
        if not callable(method) or getattr(method, "__func__", None) is declared:
            continue
        try:
            signature = inspect.signature(method)
        except ValueError:  # a method in C has no signature
            continue
        bind = signature.bind_partial if name in _MORE_ARGUMENTS else signature.bind
        expected = list(inspect.signature(declared).parameters)[1:]
        try:
            bind(*expected)
        except TypeError:
            message = f"{type(task).__name__}.{name}() must take ({', '.join(expected)})"
            got = f"({', '.join(signature.parameters)}){find_source_location(method)}"
            yield Problem("task", f"{message}, got {got}")


def find_misspelled_methods(task: type[Task]) -> Iterator[Problem]:
    """Yield a problem, for a warning, for each method whose name is near one of Task's, unless the
    modules of the task mention it again, or cannot be read."""
    source = _read_modules(_list_classes(task))
    if not source:
        return
    for name, near in _find_near_names(task):
        # Another module may call it, which is why this is no error.
        if len(re.findall(rf"\b{name}\b", source)) <= 1:
            location = find_source_location(getattr(task, name))
            yield Problem(
                "task",
                f"{task.__name__}.{name}() is never called in its own module{location}",
                suggestion=f"did you mean '{near}'? Begin the name of a helper with `_`",
            )


def _find_near_names(task: type[Task]) -> Iterator[tuple[str, str]]:
    """Yield the name of each public method that Task does not have, with a near name of Task's."""
    names: dict[str, None] = {}
    for cls in _list_classes(task):
        names |= dict.fromkeys(vars(cls))

    for name in names:
        if name.startswith("_") or name in _METHODS or not inspect.isroutine(getattr(task, name)):
            continue
        for near in get_close_matches(name, _METHODS, n=1, cutoff=0.75):
            yield name, near


def _list_classes(task: type[Task]) -> list[type[Task]]:
    """Return the class of a task and its bases below Task."""
    return [cls for cls in task.__mro__ if issubclass(cls, Task) and cls is not Task]


def _read_modules(classes: Iterable[type]) -> str:
    """Return the source of the modules that define the classes, where it can be read."""
    files = {getattr(sys.modules.get(cls.__module__), "__file__", None) for cls in classes}
    return "".join(chain.from_iterable(getlines(file) for file in files if file))

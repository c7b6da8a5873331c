"""Names of a task that have no effect and are near one that has: probable misspellings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from types import CodeType
from typing import Any

from orchestrator.config.checks.key_paths import key_paths
from orchestrator.config.python.user_code import source_location
from orchestrator.errors import Problem
from orchestrator.task import Task

_METHODS = tuple(name for name in vars(Task) if not name.startswith("_") and name != "progress")
_NEAR = 0.8
"""Smallest ratio of difflib for a method with the same arguments, or an option."""
_COMMON_NAMES = ("name", "notes", "tags")
"""Keys without effect on training, which attributes of a task may be called too."""


def misspelled_names(task: type[Task]) -> list[Problem]:
    """Return a problem for each method and option of a task that has no effect and is near one that has.

    A name that the task's own modules use anywhere is a helper's, and one that begins with `_` is private.
    """
    own = dict(_own_names(task))
    near = {name: meant for name, value in own.items() if (meant := _nearest(name, value))}
    used = _used_names(task) if near else set()
    return [_problem(task, name, own[name], meant) for name, meant in near.items() if name not in used]


def _problem(task: type[Task], name: str, value: Any, meant: str) -> Problem:
    message = f"{task.__name__}.{name}{'()' if callable(value) else ''} has no effect: nothing calls or reads it"
    hint = "? A helper's name may begin with _" if meant in _METHODS else ", a key of the experiment?"
    place = source_location(value) if callable(value) else ""
    return Problem("task", f"{message}{place}", suggestion=f"did you mean '{meant}'{hint}")


def _own_names(task: type[Task]) -> Iterator[tuple[str, Any]]:
    """Yield the methods and plain values that the user's classes define, those of mixins beside them too."""
    tasks = [cls for cls in task.__mro__ if issubclass(cls, Task) and cls is not Task]
    modules = {cls.__module__ for cls in tasks}
    for cls in task.__mro__:
        if cls.__module__ not in modules or cls is Task:
            continue
        for name, value in vars(cls).items():
            value = getattr(value, "__func__", value)
            if not name.startswith("_") and (inspect.isfunction(value) or _is_plain(value)):
                yield name, value


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | list | tuple | dict)


def _nearest(name: str, value: Any) -> str | None:
    """Return the name that was probably meant, if any."""
    if name in _METHODS:
        return None
    edited = [known for known in _METHODS if _is_one_edit(name, known)]
    if edited:
        return max(edited, key=lambda known: _ratio(name, known))
    if callable(value):
        return _most_alike(name, [known for known in _METHODS if _has_same_arguments(value, known)])
    keys = {path.rpartition(".")[2]: path for path in reversed(key_paths())}
    prefixed = next((key for key in keys if "_" in name and key.startswith(f"{name}_")), None)
    best = None if name in _COMMON_NAMES else prefixed or _most_alike(name, keys)
    return keys[best] if best else None


def _most_alike(name: str, known: Iterable[str]) -> str | None:
    best = max(known, key=lambda other: _ratio(name, other), default="")
    return best if _ratio(name, best) >= _NEAR else None


def _ratio(name: str, other: str) -> float:
    return SequenceMatcher(None, name.lower(), other.lower()).ratio()


def _is_one_edit(name: str, known: str) -> bool:
    """Return whether one letter is missing, added, replaced, or swapped with its neighbour."""
    if abs(len(name) - len(known)) > 1 or name == known:
        return False
    begin = next((index for index, pair in enumerate(zip(name, known, strict=False)) if len({*pair}) > 1), None)
    if begin is None:
        return True
    left, right = name[begin:], known[begin:]
    is_swap = left[:2] == right[:2][::-1] and left[2:] == right[2:]
    return left[1:] == right[1:] or left[1:] == right or left == right[1:] or is_swap


def _has_same_arguments(method: Any, known: str) -> bool:
    """Return whether a method can be called with the arguments of Task's method `known`."""
    arguments = list(inspect.signature(getattr(Task, known)).parameters)
    try:
        inspect.signature(method).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def _used_names(task: type[Task]) -> set[str]:
    """Return all names and strings in the code of the modules that define a task's classes."""
    own = [cls for cls in task.__mro__ if issubclass(cls, Task) and cls is not Task]
    modules = {cls.__module__ for cls in own}
    values = [vars(sys.modules[name]) for name in modules if name in sys.modules]
    names: set[str] = set()
    for code in _codes([*values, *map(vars, own)], modules):
        names.update(code.co_names, (text for text in code.co_consts if isinstance(text, str)))
    return names


def _codes(spaces: Iterable[Mapping[str, Any]], modules: set[str]) -> Iterator[CodeType]:
    for value in [value for space in spaces for value in space.values()]:
        if isinstance(value, type) and value.__module__ in modules:
            yield from _codes([vars(value)], {*()})
        functions = (value, *(getattr(value, part, None) for part in ("__func__", "__wrapped__", "fget", "func")))
        for function in functions:
            if isinstance(code := getattr(function, "__code__", None), CodeType):
                yield from _within(code)


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _within(inner)

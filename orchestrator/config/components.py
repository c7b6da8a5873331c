"""Builds what an experiment names: its task and hooks. Runs in the driver and in each worker."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hooks import HOOKS, Hook, Priority
from orchestrator.config.checks.misspelled import misspelled_names
from orchestrator.config.python.imports import find_class
from orchestrator.config.python.objects import to_config
from orchestrator.config.python.parameters import construct, parameters
from orchestrator.config.text.reader import join
from orchestrator.errors import ConfigError, Problem, collect_problems, did_you_mean
from orchestrator.task import Task

ENTRY_POINTS = "hookyard.hooks"
"""The entry point group in which other packages offer hooks."""

NAME = re.compile(r"\w[\w.-]{0,99}")
WRONG_NAME = "is no name, by which folders may be called: letters, digits, `_`, `-` and `.`, 100 of them at most"

DEFAULT_HOOKS = (
    "sampler_seed",
    "sync_buffers",
    "param_scheduler",
    "perf_stats",
    "memory_stats",
    "console",
    "checkpoint",
)
"""The hooks of an experiment that does not say otherwise, in this order."""

PLAN_KEYS = ("type", "priority", "level")
"""Entries of a hook that say what it is, and when it is called among others, where it has no parameters of these
names."""

IMIX_LEVELS = {
    "HIGHEST": (0, 0),
    "HIGHER": (10, 10),
    "HIGH": (20, 20),
    "NORMAL": (30, 50),
    "LOW": (40, 70),
    "LOWER": (50, 80),
    "LOWEST": (60, 100),
}
"""iMIX's PriorityStatus: a name to its value there and to the priority it means here."""


# Task


def make_task(name: str, arguments: Mapping[str, Any]) -> tuple[Task, dict[str, Any]]:
    """The task of class `name` (`module:Class`) and all its arguments; raises ConfigError."""
    cls: type[Task] = find_class(name, Task, {}, "task")  # type: ignore[type-abstract]  # Task is a bound here, never made
    if arguments and not dataclasses.is_dataclass(cls):
        message = f"{name} is no dataclass, so it takes no arguments, got {', '.join(arguments)}"
        raise ConfigError([Problem("task_args", message, suggestion="put @dataclass above the class")])
    if problems := misspelled_names(cls):
        raise ConfigError(problems)
    return construct(cls, arguments, "task_args")


# Hooks


class MadeHook(NamedTuple):
    """A hook and what a config says of it in full: type, parameters, its priority where that is not the class's."""

    hook: Hook
    entry: dict[str, Any]


def make_hooks(
    entries: Mapping[str, Any], required: Mapping[str, Any], defaults: Iterable[str] | None = None
) -> dict[str, MadeHook | None]:
    """Every hook by name, None where it is switched off: the defaults, then what the task requires, then the others.

    `entries` is what the experiment says: a mapping, null or false for off, true for as it is; `required` may hold
    classes and objects too; `defaults` are others than those of every experiment. Raises ConfigError with every problem
    of every hook.
    """
    required = to_config(required, "hooks")
    problems = [Problem(f"hooks.{name}", WRONG_NAME) for name in entries if not NAME.fullmatch(name)]
    names = dict.fromkeys([*(DEFAULT_HOOKS if defaults is None else defaults), *required, *entries])
    made = {name: collect_problems(problems, _made, name, entries, required) for name in names}
    if problems:
        raise ConfigError(problems)
    return made


def _made(name: str, entries: Mapping[str, Any], required: Mapping[str, Any]) -> MadeHook | None:
    own = _as_mapping(name, entries.get(name, True))
    if own is not None:
        return make_hook(name, {**(_as_mapping(name, required.get(name)) or {}), **own}, entries)
    if name in required:
        raise ConfigError([Problem(f"hooks.{name}", "is required by the task and cannot be switched off")])
    return None


def hook_class(name: str, path: str = "", others: Iterable[str] = ()) -> type[Hook]:
    """The hook called `name`: in HOOKS, an entry point of `hookyard.hooks`, or `module:Class`; raises ConfigError.

    `others` are names that may have been meant, beside those in HOOKS.
    """
    cls = find_class(name, Hook, HOOKS, path, ENTRY_POINTS, others)
    if not hasattr(cls, "__dataclass_fields__"):
        raise ConfigError([Problem(path, f"'{name}' is no dataclass", suggestion="put @dataclass above the class")])
    return cls


def _as_mapping(name: str, value: Any) -> dict[str, Any] | None:
    if value is None or value is False:
        return None
    if value is True:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    message = f"must be a mapping of the hook's parameters, or null or false to switch it off, got {value!r}"
    raise ConfigError([Problem(f"hooks.{name}", message)])


def make_hook(name: str, entry: Mapping[str, Any], others: Iterable[str] = ()) -> MadeHook:
    """The hook called `name` with the settings of an entry; `others` are names that may have been meant. Raises
    ConfigError."""
    entry = dict(entry)
    path = f"hooks.{name}"
    kind = entry.pop("type", name)
    if not isinstance(kind, str):
        raise ConfigError([Problem(f"{path}.type", f"must be text, got {kind!r}")])
    cls = hook_class(kind, f"{path}.type") if kind != name else hook_class(name, path, others)
    problems: list[Problem] = []
    priority = collect_problems(problems, _take_priority, entry, cls, path)
    made = collect_problems(problems, construct, cls, entry, path, kind)
    if problems or made is None:
        raise ConfigError(problems)
    hook, settings = made
    if priority is not None:
        hook.priority, settings["priority"] = priority, int(priority)  # type: ignore[misc]  # for this instance alone
    return MadeHook(hook, {"type": kind, **settings})


def _take_priority(entry: dict[str, Any], cls: type[Hook], path: str) -> int | None:
    """Takes `priority` or iMIX's `level` out of an entry, unless the hook has a parameter of that name."""
    given = {key: entry.pop(key) for key in ("priority", "level") if key in entry and key not in parameters(cls)}
    if len(given) == 2:
        raise ConfigError([Problem(path, "has both priority and level; say one of them")])
    if "priority" in given:
        return _priority(given["priority"], join(path, "priority"))
    return _level(given["level"], join(path, "level")) if "level" in given else None


def _priority(value: Any, path: str) -> int:
    if isinstance(value, str) and value.upper() in Priority.__members__:
        return Priority[value.upper()]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100:
        return value
    message = f"must be 0 to 100, or one of {', '.join(Priority.__members__)}, got {value!r}"
    raise ConfigError([Problem(path, message, suggestion=did_you_mean(str(value), Priority.__members__))])


def _level(value: Any, path: str) -> int:
    name = value.upper() if isinstance(value, str) else value
    for level, (number, priority) in IMIX_LEVELS.items():
        if name == level or (name == number and not isinstance(value, bool)):
            return priority
    allowed = ", ".join(f"{level} ({number})" for level, (number, _) in IMIX_LEVELS.items())
    message = f"must be one of iMIX's levels, {allowed}, got {value!r}"
    raise ConfigError([Problem(path, message, suggestion=did_you_mean(str(value), IMIX_LEVELS))])

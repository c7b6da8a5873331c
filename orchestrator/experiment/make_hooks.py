"""Make the hooks of an experiment from their entries. Runs in the driver and in each worker."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hooks import HOOKS, Hook, Priority
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.experiment.fields.construction import construct
from orchestrator.experiment.fields.other_systems import find_classes_elsewhere
from orchestrator.experiment.fields.parameters import list_parameters
from orchestrator.experiment.fields.plain_data import convert_all, to_entry
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.nearest_names import did_you_mean
from orchestrator.user_code.named_classes import find_class

ENTRY_POINTS = "hookyard.hooks"
"""The entry point group in which other packages offer hooks."""

_NAME = re.compile(r"\w[\w-]{0,99}")
_NAME_RULE = "must be at most 100 letters, digits, `_` and `-`, and begin with a letter or digit"
"""A hook's name is a part of dotted paths, such as those of overrides and of a sweep's space."""

DEFAULT_HOOKS = (
    "sampler_seed",
    "sync_buffers",
    "param_scheduler",
    "perf_stats",
    "memory_stats",
    "console",
    "checkpoint",
)
"""The hooks of every experiment unless it turns them off, in this order."""

PLAN_KEYS = ("type", "priority")
"""Keys of a hook's entry for its class and its order among the hooks, unless it has parameters of
these names."""


class BuiltHook(NamedTuple):
    """A hook and its complete entry: type, parameters, and its own priority."""

    hook: Hook
    entry: dict[str, Any]


def make_hooks(
    entries: Mapping[str, Any], required: Mapping[str, Any], defaults: Iterable[str] | None = None
) -> dict[str, BuiltHook | None]:
    """Create every hook by name, None where it is off.

    Args:
        entries: The experiment's entries: a mapping, null or false for off, or true for defaults.
        required: The hooks that the task requires, which may be classes and objects too.
        defaults: Names of the default hooks; None for DEFAULT_HOOKS.

    Returns:
        The default hooks, then those that the task requires, then the others.

    Raises:
        ConfigError: With every problem of every hook.
    """
    required = convert_all(required, "hooks", to_entry)
    first = DEFAULT_HOOKS if defaults is None else defaults
    names = dict.fromkeys([*first, *required, *entries])
    problems = [Problem(f"hooks.{name}", _NAME_RULE) for name in names if not _NAME.fullmatch(name)]
    hooks = {
        name: collect_problems(problems, _make_unless_off, name, entries, required)
        for name in names
    }
    if problems:
        raise ConfigError(problems)
    return hooks


def _make_unless_off(
    name: str, entries: Mapping[str, Any], required: Mapping[str, Any]
) -> BuiltHook | None:
    """Create a hook of its entry over that of the task, or return None if it is off."""
    entry = _as_mapping(name, entries.get(name, True))
    if entry is not None:
        default = _as_mapping(name, required.get(name)) or {}
        return make_hook(name, {**default, **entry}, entries)
    if name in required:
        raise ConfigError.at(f"hooks.{name}", "cannot be turned off, as the task requires it")
    return None


def find_hook_class(name: str, path: str = "", others: Iterable[str] = ()) -> type[Hook]:
    """Return the hook called `name`: in HOOKS, at an entry point, or `module:Class`.

    Raises ConfigError, which also suggests `others`.
    """
    suggestion = None
    if name not in HOOKS:
        suggestion = find_classes_elsewhere().get(name) or did_you_mean(
            name, {*HOOKS, *others} - {name}
        )
    cls = find_class(name, Hook, HOOKS, path, ENTRY_POINTS, suggestion)
    if not hasattr(cls, "__dataclass_fields__"):
        raise ConfigError.at(path, f"'{name}' is not a dataclass", "put @dataclass above the class")
    return cls


def _as_mapping(name: str, value: Any) -> dict[str, Any] | None:
    """Return the settings of a hook's entry; None if it is off."""
    if value is None or value is False:
        return None
    if value is True:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    raise ConfigError.at(
        f"hooks.{name}",
        f"must be a mapping of the hook's parameters, true, false or null, got {value!r}",
    )


def make_hook(name: str, entry: Mapping[str, Any], others: Iterable[str] = ()) -> BuiltHook:
    """Create the hook called `name` with the settings of an entry.

    Raises ConfigError, which suggests `others` too for an unknown name.
    """
    entry = dict(entry)
    path = f"hooks.{name}"
    kind = entry.pop("type", name)
    if not isinstance(kind, str):
        raise ConfigError.at(f"{path}.type", f"must be a string, got {kind!r}")
    cls = _find_class_of_entry(name, kind, others)

    problems: list[Problem] = []
    priority = collect_problems(problems, _take_priority, entry, cls, path)
    constructed = collect_problems(problems, construct, cls, entry, path)
    if problems or constructed is None:
        raise ConfigError(problems)
    hook, settings = constructed
    if priority is not None:
        hook.priority = priority  # type: ignore[misc]  # for this instance alone
        settings["priority"] = int(priority)
    return BuiltHook(hook, {"type": kind, **settings})


def _find_class_of_entry(name: str, kind: str, others: Iterable[str]) -> type[Hook]:
    """Return the class of the hook's `type`, which is its name where none is written."""
    if kind != name:
        return find_hook_class(kind, f"hooks.{name}.type")
    return find_hook_class(name, f"hooks.{name}", others)


def _take_priority(entry: dict[str, Any], cls: type[Hook], path: str) -> int | None:
    """Remove `priority` from an entry and return it, unless it is a parameter of the hook."""
    if "priority" not in entry or "priority" in list_parameters(cls):
        return None
    value = entry.pop("priority")
    if isinstance(value, str) and value.upper() in Priority.__members__:
        return Priority[value.upper()]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100:
        return value
    message = f"must be from 0 to 100, or one of {', '.join(Priority.__members__)}, got {value!r}"
    suggestion = did_you_mean(str(value), Priority.__members__)
    raise ConfigError.at(join(path, "priority"), message, suggestion)

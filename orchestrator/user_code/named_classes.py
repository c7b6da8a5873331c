"""Classes and functions that a config names."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, TypeVar

from hooks.import_path import NoSuchModule, import_named
from orchestrator.errors import ConfigError
from orchestrator.nearest_names import did_you_mean
from orchestrator.user_code.failures import catch_user_errors
from orchestrator.user_code.origins import MAIN

T = TypeVar("T")

_MAX_NAMES = 20
"""Maximum number of a table's names in a message; only the table of hooks has more."""

_IMPORT_PATH = re.compile(r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$")


def find_class(
    name: str,
    base: type[T],
    table: Mapping[str, type[T]],
    path: str = "",
    group: str | None = None,
    others: Iterable[str] = (),
    advice: str | None = None,
) -> type[T]:
    """Return the class that a config names. Imports its module, and evaluates nothing.

    Args:
        name: A name in `table`, of an entry point of `group`, or `module:Class`.
        base: Base class of all that may be named.
        table: Classes by name.
        path: Path of the name in the config, for the error.
        group: Group of entry points; None if there is none.
        others: Further names that the error may suggest.
        advice: Advice about this name, instead of a suggestion.

    Raises:
        ConfigError: There is no such class, or its module cannot be imported.
    """
    with catch_user_errors(path, f"'{name}' cannot be inspected"):
        cls: Any = table.get(name)
        if cls is None and group:
            cls = _load_entry_point(name, path, group)
        if cls is None:
            if not _IMPORT_PATH.match(name):
                hint = advice or did_you_mean(name, {*table, *others} - {name})
                raise _make_unknown_error(name, base, table, path, hint)
            cls = _import(name, base, path)

        if not isinstance(cls, type):
            shown = f"a {type(cls).__name__}"
        elif not issubclass(cls, base):
            shown = f"the class {cls.__module__}.{cls.__qualname__}"
        else:
            return cls
        raise ConfigError.at(path, f"must be a subclass of {base.__name__}, got {shown}")


def find_function(name: str, path: str) -> Callable[..., Any]:
    """Return the function that `module:function` names; raises ConfigError at `path`."""
    module_name, _, function_name = name.partition(":")
    if not _IMPORT_PATH.match(name):
        raise ConfigError.at(path, f"must be module:function, got '{name}'")
    with catch_user_errors(path, f"module '{module_name}' cannot be imported"):
        function: Callable[..., Any] | None = getattr(
            import_named(module_name), function_name, None
        )
    if not callable(function):
        raise ConfigError.at(path, f"module '{module_name}' has no function '{function_name}'")
    return function


def _load_entry_point(name: str, path: str, group: str) -> Any:
    for point in _list_entry_points(group).select(name=name):
        with catch_user_errors(path, f"entry point '{name}' ({point.value}) cannot be loaded"):
            return point.load()
    return None


@cache
def _list_entry_points(group: str) -> EntryPoints:
    return entry_points(group=group)  # reads the metadata of all packages


def _import(name: str, base: type[Any], path: str) -> Any:
    module_name, _, class_name = name.partition(":")
    with catch_user_errors(path, f"module '{module_name}' cannot be imported"):
        try:
            module = import_named(module_name)
        except NoSuchModule as error:
            raise ConfigError.at(path, str(error)) from None
    if hasattr(module, class_name):
        return getattr(module, class_name)
    classes = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    ]
    hint = f"it has {', '.join(classes)}" if classes else None
    if module_name == MAIN:
        hint = "only the process of a script or a notebook knows its classes: continue there"
    file = getattr(module, "__file__", "built into Python")
    raise ConfigError.at(
        path,
        f"module '{module_name}' ({file}) has no '{class_name}'",
        did_you_mean(class_name, classes) or hint,
    )


def _make_unknown_error(
    name: str, base: type[Any], table: Mapping[str, Any], path: str, hint: str | None
) -> ConfigError:
    if not table:
        return ConfigError.at(path, f"must be module:Class, such as my_module:MyTask, got '{name}'")
    names = ", ".join(sorted(table)) if len(table) <= _MAX_NAMES else "those of `hookyard hooks`"
    kind = base.__name__.removeprefix("LR").lower()
    known = f"known: {names}, or module:Class"
    return ConfigError.at(path, f"unknown {kind} '{name}'", hint or known)

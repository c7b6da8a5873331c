"""Classes and functions that a config names."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoints, entry_points
from inspect import isfunction
from types import ModuleType
from typing import Any, TypeVar

from hooks.errors import add_article
from hooks.import_path import NoSuchModule, import_named
from orchestrator.errors import ConfigError
from orchestrator.nearest_names import did_you_mean
from orchestrator.user_code.failures import catch_user_errors

T = TypeVar("T")

MAIN = "__main__"
"""The module of a script and of a notebook, which other processes cannot import."""

_MAX_NAMES = 20
"""Maximum number of names in a message; of the tables, only that of hooks has more."""

_IMPORT_PATH = re.compile(r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$")


def find_import_paths(config: Any) -> Iterator[tuple[str, str]]:
    """Yield module and name of each `module:Class` or `module:function` in a config."""
    if isinstance(config, str):
        module, colon, name = config.partition(":")
        if colon and name.isidentifier():
            yield module, name
    elif isinstance(config, Mapping | list):
        for value in config.values() if isinstance(config, Mapping) else config:
            yield from find_import_paths(value)


def find_class(
    name: str,
    base: type[T],
    table: Mapping[str, type[T]],
    path: str = "",
    group: str | None = None,
    suggestion: str | None = None,
) -> type[T]:
    """Return the class that a config names. Imports its module, and evaluates nothing.

    Args:
        name: A name in `table`, of an entry point of `group`, or `module:Class`.
        base: Base class of all that may be named.
        table: Classes by name.
        path: Path of the name in the config, for the error.
        group: Group of entry points; None if there is none.
        suggestion: What to do about an unknown name; by default to take the nearest in `table`.

    Raises:
        ConfigError: There is no such class, or its module cannot be imported.
    """
    with catch_user_errors(path, f"'{name}' cannot be inspected"):
        cls: Any = table.get(name)
        if cls is None and group:
            cls = _load_entry_point(name, path, group)
        if cls is None:
            if not _IMPORT_PATH.match(name):
                hint = suggestion or did_you_mean(name, table)
                raise _make_unknown_error(name, base, table, path, hint)
            cls = _find_attribute(name, path, partial(_is_proper_subclass, base))

        if not isinstance(cls, type):
            shown = add_article(type(cls).__name__)
        elif not issubclass(cls, base):
            shown = f"the class {cls.__module__}.{cls.__qualname__}"
        else:
            return cls
        raise ConfigError.at(path, f"must be a subclass of {base.__name__}, got {shown}")


def find_function(name: str, path: str) -> Callable[..., Any]:
    """Return the function that `module:function` names; raises ConfigError at `path`."""
    if not _IMPORT_PATH.match(name):
        raise ConfigError.at(path, f"must be module:function, got '{name}'")
    module_name = name.partition(":")[0]
    function: Callable[..., Any] = _find_attribute(
        name, path, lambda value: isfunction(value) and value.__module__ == module_name
    )
    if not callable(function):
        raise ConfigError.at(
            path, f"must be a function, got {add_article(type(function).__name__)}"
        )
    return function


def _load_entry_point(name: str, path: str, group: str) -> Any:
    for point in _list_entry_points(group).select(name=name):
        with catch_user_errors(path, f"entry point '{name}' ({point.value}) cannot be loaded"):
            return point.load()
    return None


@cache
def _list_entry_points(group: str) -> EntryPoints:
    return entry_points(group=group)  # reads the metadata of all packages


def _find_attribute(import_path: str, path: str, is_alternative: Callable[[Any], bool]) -> Any:
    """Return what `module:name` names. The error suggests the alternatives in the module."""
    module_name, _, name = import_path.partition(":")
    with catch_user_errors(path, f"module '{module_name}' cannot be imported"):
        try:
            module = import_named(module_name)
        except NoSuchModule as error:
            raise ConfigError.at(path, str(error)) from None
    if hasattr(module, name):
        return getattr(module, name)
    alternatives = [key for key, value in vars(module).items() if is_alternative(value)]
    hint = f"it has {', '.join(alternatives)}" if 0 < len(alternatives) <= _MAX_NAMES else None
    if module_name == MAIN:
        hint = "only the process of a script or a notebook knows its definitions: continue there"
    raise ConfigError.at(
        path,
        f"module '{module_name}' ({_describe_place(module)}) has no '{name}'",
        did_you_mean(name, alternatives) or hint,
    )


def _is_proper_subclass(base: type[Any], value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, base) and value is not base


def _describe_place(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    if file:
        return str(file)
    if module.__name__ == MAIN:
        return "a notebook or a session"
    for folder in getattr(module, "__path__", ()):
        return f"{folder}, a folder without __init__.py"
    return "built into Python"


def _make_unknown_error(
    name: str, base: type[Any], table: Mapping[str, Any], path: str, hint: str | None
) -> ConfigError:
    if not table:
        return ConfigError.at(path, f"must be module:Class, such as my_module:MyTask, got '{name}'")
    names = ", ".join(sorted(table)) if len(table) <= _MAX_NAMES else "those of `hookyard hooks`"
    kind = base.__name__.removeprefix("LR").lower()
    known = f"known: {names}, or module:Class"
    return ConfigError.at(path, f"unknown {kind} '{name}'", hint or known)

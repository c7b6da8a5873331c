"""Classes that a config names, and the errors of their code."""

import inspect
import pickle
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from hooks import hook
from hooks.errors import WrongHook, format_error
from hooks.import_path import NoSuchModule, import_named
from orchestrator.errors import ConfigError, did_you_mean, raised_in_python

T = TypeVar("T")

_MAX_NAMES = 20
"""Maximum number of a table's names in a message; only the table of hooks has more."""

MAIN = "__main__"
"""The module of a script and of a notebook, which other processes cannot import."""

_IMPORT_PATH = re.compile(r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$")


def define_main_classes(classes: bytes | None) -> None:
    """Define the pickled classes of a driver's script or notebook in this worker's `__main__`."""
    if classes:
        vars(import_named(MAIN)).update(pickle.loads(classes))


def find_class(
    name: str,
    base: type[T],
    table: Mapping[str, type[T]],
    path: str = "",
    group: str | None = None,
    others: Iterable[str] = (),
    advice: str | None = None,
) -> type[T]:
    """Return the class called `name`: in `table`, an entry point of `group`, or `module:Class`.

    Imports the module, evaluates nothing. Raises ConfigError at `path`, which gives the `advice`,
    or else suggests near names, also of `others`.
    """
    with catch_user_errors(path, f"'{name}' cannot be inspected"):
        cls = table.get(name) or (group and _load_entry_point(name, path, group))
        if not cls and not _IMPORT_PATH.match(name):
            hint = advice or did_you_mean(name, {*table, *others} - {name})
            raise _make_unknown_error(name, base, table, path, hint)
        cls = cls or _import(name, base, path)
        if isinstance(cls, type) and issubclass(cls, base):
            return cls
        shown = f"a {type(cls).__name__}"
        if isinstance(cls, type):
            shown = f"the class {cls.__module__}.{cls.__qualname__}"
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


# Where named classes come from


def list_import_folders(config: Any) -> list[Path]:
    """Return the folders to import the named classes from, without those of installed packages."""
    modules = [sys.modules.get(module) for module, _ in _find_class_names(config)]
    folders = dict.fromkeys(_import_folder(module) for module in modules if module)
    return [folder for folder in folders if folder]


def find_main_classes(config: Any) -> dict[str, type]:
    """Return the named classes of the script or notebook itself."""
    namespace = vars(sys.modules[MAIN])
    names = [name for module, name in _find_class_names(config) if module == MAIN]
    return {name: namespace[name] for name in names if name in namespace}


def read_main_source(config: Any) -> str:
    """Return the source of these classes and of their bases, where it can be read."""
    classes: list[type] = []
    for cls in find_main_classes(config).values():
        classes += [base for base in reversed(cls.__mro__) if base.__module__ == MAIN]
    sources = []
    for cls in dict.fromkeys(classes):
        with suppress(OSError, TypeError):  # defined without a file or a cell
            sources.append(inspect.getsource(cls))
    return "\n\n".join(sources)


def _find_class_names(config: Any) -> Iterator[tuple[str, str]]:
    """Yield module and name of each `module:Class` in a config."""
    if isinstance(config, str):
        module, colon, name = config.partition(":")
        if colon and name.isidentifier():
            yield module, name
    elif isinstance(config, Mapping | list):
        for value in config.values() if isinstance(config, Mapping) else config:
            yield from _find_class_names(value)


def _import_folder(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == MAIN:
        return None
    path = Path(file).absolute()
    if any(path.is_relative_to(installed) for installed in sysconfig.get_paths().values()):
        return None
    levels = module.__name__.count(".") + (path.stem == "__init__")
    return path.parents[levels]


# Errors of user code


_OUR_FILES = (
    "importlib",
    "contextlib.py",
    "import_path.py",
    str(Path(hook.__file__)),
    str(Path(__file__).parent),
)


@contextmanager
def catch_user_errors(path: str, failure: str = "") -> Iterator[None]:
    """Raise ConfigError at `path` for any exception in the block but Ctrl-C.

    The message begins with `failure`. Without one, a ValueError is reported by its own message
    alone.
    """
    try:
        yield
    except ConfigError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not raised_in_python(error.__traceback__):
            raise
        if isinstance(error, WrongHook):
            raise ConfigError.at(path, f"{error}{_find_raising_line(error)}") from error
        text = error.msg if isinstance(error, SyntaxError) else format_error(error)
        if isinstance(error, ValueError) and text and not failure:
            raise ConfigError.at(path, text) from error
        message = f"{failure}: " if failure else ""
        message += f"{type(error).__name__}: {text}"
        if isinstance(error, SystemExit):
            message += " (it tries to end the process)"
        raise ConfigError.at(path, f"{message}{_find_raising_line(error)}") from error


def call_for_mapping(method: Callable[[], Any], expected: str) -> Mapping[Any, Any]:
    """Call a method of the task that must return a mapping; may raise ConfigError."""
    with catch_user_errors("task", f"{method.__qualname__}() failed"):
        value = method()
    if isinstance(value, Mapping):
        return value
    message = f"{method.__qualname__}() must return {expected}, got a {type(value).__name__}"
    raise ConfigError.at("task", f"{message}{find_source_location(method)}")


def find_source_location(method: Callable[..., Any]) -> str:
    """Return ` (file:line)` of a method, or nothing if it has no source."""
    try:
        return f" ({inspect.getsourcefile(method)}:{inspect.getsourcelines(method)[1]})"
    except (OSError, TypeError):
        return ""


def _find_raising_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f" ({error.filename}:{error.lineno})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(ours in frame.filename for ours in _OUR_FILES):
            return f" ({frame.filename}:{frame.lineno})"
    return ""

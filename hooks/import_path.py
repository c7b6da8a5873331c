"""Import of modules from the user's folders, by names in experiment files."""

import importlib
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_origin, get_type_hints

T = TypeVar("T")

_user_folders: list[str] = []
"""Folders that this process appended to its import path."""


class NoSuchModule(ImportError):
    """A missing module."""


def extend_import_path(paths: Iterable[str | Path]) -> None:
    """Append folders to the import path; never in front, so that no user file hides an installed
    module."""
    for path in map(str, paths):
        if path not in _user_folders:
            _user_folders.append(path)
        if path not in sys.path:
            sys.path.append(path)


def import_named(name: str) -> ModuleType:
    """Import a module by its dotted name; a name that begins with a user's folder is found from
    above that folder.

    Raises NoSuchModule if there is none, and whatever the module raises.
    """
    if name not in sys.modules:
        # Its file may be new.
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = error.name or name
        above = _find_folders_above(missing)
        if above:
            extend_import_path(above)
            return import_named(name)
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{missing}."):
            raise NoSuchModule(_describe_missing(missing)) from None
        raise


def import_callable(path: str, field: str, expected: type[T]) -> Callable[..., T]:
    """Return what `module:name` names: a subclass of `expected`, or a function annotated to return
    one.

    Raises ValueError with the hook's field for anything else: a config must not call arbitrary
    code.
    """
    module, _, name = path.partition(":")
    try:
        target: Any = getattr(import_named(module), name)
        declared = target if isinstance(target, type) else get_type_hints(target).get("return")
    except (ImportError, AttributeError, ValueError, TypeError, NameError) as error:
        raise ValueError(f"{field}: must be module:callable, got '{path}' ({error})") from error
    declared = get_origin(declared) or declared
    if not (isinstance(declared, type) and issubclass(declared, expected)):
        wanted = f"{expected.__module__}.{expected.__qualname__}"
        raise ValueError(
            f"{field}: '{path}' must be a subclass of {wanted},"
            " or a function annotated to return one"
        )
    builder: Callable[..., T] = target
    return builder


def _list_folders() -> list[Path]:
    """Return the user's folders that are still on the import path."""
    return [Path(folder) for folder in _user_folders if folder in sys.path]


def _find_folders_above(name: str) -> list[Path]:
    """Return the parents of the user's folders of this name that are not on the import path."""
    parents = [folder.parent for folder in _list_folders() if folder.name == name]
    return [parent for parent in parents if str(parent) not in sys.path]


def _describe_missing(module: str) -> str:
    """Return where a missing module was searched, and a hint."""
    parent = module.rpartition(".")[0]
    folders = getattr(sys.modules.get(parent), "__path__", None) or list(map(str, _list_folders()))
    places = list(folders)
    if parent not in sys.modules:
        places.append("the installed packages")
    hint = _find_hidden(module) or _find_uninstalled(module) or _suggest_nearest(module, folders)
    return f"no module '{module}' in {' or '.join(places)}{hint}"


def _suggest_nearest(module: str, folders: Iterable[str]) -> str:
    """Return a hint if folders have a module with a similar name."""
    parent, dot, name = module.rpartition(".")
    modules: list[str] = []
    for folder in folders:
        files = Path(folder).glob("*")
        modules += [file.stem for file in files if file.suffix == ".py" or file.is_dir()]
    near = get_close_matches(name, modules, n=1)
    return f" (did you mean '{parent}{dot}{near[0]}'?)" if near else ""


def _find_uninstalled(module: str) -> str:
    """Return a hint if the source of a missing module's package is in a user's folder `src`."""
    package = module.partition(".")[0]
    for folder in _list_folders():
        source = folder / "src"
        if (source / package).is_dir() or (source / f"{package}.py").is_file():
            return (
                f" ('{package}' is in {source}, which is not installed;"
                f" run pip install -e . in {folder})"
            )
    return ""


def _find_hidden(module: str) -> str:
    """Return a hint if another package hides a user's file of this name."""
    for folder in _list_folders():
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        if file.is_file():
            return f" (it hides {file}; rename your folder)"
    return ""

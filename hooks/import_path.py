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
        importlib.invalidate_caches()  # its file may be new
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = error.name or name
        above = [
            f.parent for f in _folders() if f.name == missing and str(f.parent) not in sys.path
        ]
        if above:
            extend_import_path(above)
            return import_named(name)
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{missing}."):
            raise NoSuchModule(_describe_missing(missing)) from None
        raise


def callable_at(path: str, field: str, expected: type[T]) -> Callable[..., T]:
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
            f"{field}: '{path}' must be a subclass of {wanted}, or a function annotated to return one"
        )
    builder: Callable[..., T] = target
    return builder


def _folders() -> list[Path]:
    """Return the user's folders that are still on the import path."""
    return [Path(folder) for folder in _user_folders if folder in sys.path]


def _describe_missing(module: str) -> str:
    """Return where a missing module was searched, and the nearest name in these folders."""
    parent, _, name = module.rpartition(".")
    folders = getattr(sys.modules.get(parent), "__path__", None) or [*map(str, _folders())]
    places = folders if parent in sys.modules else [*folders, "the installed packages"]
    modules = [
        file.stem
        for folder in folders
        for file in Path(folder).glob("*")
        if file.suffix == ".py" or file.is_dir()
    ]
    near = get_close_matches(name, modules, n=1)
    hint = f" (did you mean '{'.'.join(filter(None, (parent, near[0])))}'?)" if near else ""
    first = module.partition(".")[0]
    sources = [folder / "src" for folder in _folders()]
    for source in sources:
        if (source / first).is_dir() or (source / f"{first}.py").is_file():
            hint = f" ('{first}' is in {source}, which is not installed; run pip install -e . in {source.parent})"
    own_files = [folder.joinpath(*module.split(".")).with_suffix(".py") for folder in _folders()]
    if hidden := [file for file in own_files if file.is_file()]:
        hint = f" (it hides {hidden[0]}; rename your folder)"
    return f"no module '{module}' in {' or '.join(places)}{hint}"

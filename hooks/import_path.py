"""Dotted names of modules, as files say them: the folders they are looked for in, and what is said of one that is not
found."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_origin, get_type_hints

T = TypeVar("T")

_HOOKYARDS = ("hooks", "orchestrator")

_users_folders: list[str] = []
"""What this process has appended to its import path."""


class NoSuchModule(ImportError):
    """No module of a name is found, or another than the user's is; says where each lies."""


def extend_import_path(paths: Iterable[str | Path]) -> None:
    """Appends folders to the import path; never in front, so that no file of the user's hides an installed module."""
    for path in map(str, paths):
        if path not in _users_folders:
            _users_folders.append(path)
        if path not in sys.path:
            sys.path.append(path)


def import_named(name: str) -> ModuleType:
    """Imports the module of a dotted name; one that begins with the name of a user's folder is found from above that
    folder.

    Raises NoSuchModule where there is none, or where the user's lies behind another of that name; else whatever the
    module raises.
    """
    if name not in sys.modules:
        importlib.invalidate_caches()  # its file may be newer than what Python knows of its folder
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        missing = error.name or name
        above = [folder for folder in _folders_above(missing) if str(folder) not in sys.path]
        if above:
            extend_import_path(above)
            return import_named(name)
        if hidden := hidden_module(missing):
            raise NoSuchModule(f"{error}: {hidden}") from None
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{missing}."):
            raise NoSuchModule(f"no module '{missing}' in {_searched(missing)}") from None
        raise
    if name.partition(".")[0] in _HOOKYARDS and (hidden := hidden_module(name)):
        raise NoSuchModule(hidden)
    return module


def hidden_module(name: str) -> str | None:
    """What to say where a file of the user's has this dotted name, and a module from elsewhere has the first part of
    it."""
    top = name.partition(".")[0]
    taken = sys.modules.get(top)
    folders = [*_folders(), *_folders_above(top)]
    files = [(folder, file) for folder in folders for file in _files(folder, name) if file.is_file()]
    if taken is not None and top in _HOOKYARDS:
        # Our own folder may be one of the user's, who works in a checkout.
        files = [(folder, file) for folder, file in files if folder.resolve() not in _parents(taken)]
    if not files or taken is None or files[0][0].resolve() in _parents(taken):
        return None
    folder, file = files[0]
    own = folder / top if (folder / top).is_dir() else file
    whose = "Hookyard's own package" if top in _HOOKYARDS else "a module from elsewhere"
    return (
        f"'{top}' is {whose} ({_origin(taken)}), which comes before {file}; "
        f"give {own} another name, such as my_{own.name}, and write my_{name}"
    )


def callable_at(path: str, field: str, gives: type[T]) -> Callable[..., T]:
    """What `module:name` names: a subclass of `gives`, or a function that is annotated to return one, as no file may
    have just anything called. Raises ValueError, with the hook's field, where it cannot be imported or is something
    else."""
    module, _, name = path.partition(":")
    try:
        found: Any = getattr(import_named(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{field}: '{path}' cannot be imported ({error}); write module:callable") from error
    try:
        declared = found if isinstance(found, type) else get_type_hints(found).get("return")
    except (
        TypeError,
        NameError,
        AttributeError,
    ) as error:  # it is no function, or its annotations name what is not there
        raise ValueError(f"{field}: what '{path}' returns cannot be told ({error})") from error
    declared = get_origin(declared) or declared
    if not (isinstance(declared, type) and issubclass(declared, gives)):
        wanted = f"{gives.__module__}.{gives.__qualname__}"
        raise ValueError(
            f"{field}: '{path}' is neither a subclass of {wanted} nor a function annotated to return one (def {name}()"
            f" -> {gives.__name__})"
        )
    called: Callable[..., T] = found
    return called


def _folders() -> list[Path]:
    """The user's folders that are on the import path still."""
    return [Path(folder) for folder in _users_folders if folder in sys.path]


def _folders_above(top: str) -> list[Path]:
    """Where those of the user's folders lie that are called as the first part of a dotted name."""
    return [folder.parent for folder in _folders() if folder.name == top]


def _files(folder: Path, name: str) -> Iterator[Path]:
    """Where a module of a dotted name may lie in a folder."""
    place = folder.joinpath(*name.split("."))
    yield place / "__init__.py"
    yield place.with_name(f"{place.name}.py")


def _parents(module: ModuleType) -> set[Path]:
    """The folders in which a top-level module lies; several for a package without `__init__.py`."""
    return {
        Path(place).resolve().parent
        for place in [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
        if place
    }


def _origin(module: ModuleType) -> str:
    places = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None) or "built into Python"]
    return ", ".join(places)


def _searched(module: str) -> str:
    parent = sys.modules.get(module.rpartition(".")[0])
    return ", ".join(folder or "." for folder in getattr(parent, "__path__", sys.path))

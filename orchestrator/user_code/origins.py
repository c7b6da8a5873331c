"""Where the classes that a config names come from: folders, or a script or notebook."""

import inspect
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from hooks.import_path import import_named
from orchestrator.user_code.installed import is_installed

MAIN = "__main__"
"""The module of a script and of a notebook, which other processes cannot import."""


def define_main_classes(classes: bytes | None) -> None:
    """Define the pickled classes of a driver's script or notebook in this worker's `__main__`."""
    if classes:
        vars(import_named(MAIN)).update(pickle.loads(classes))


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
    if is_installed(str(path)):
        return None
    levels = module.__name__.count(".") + (path.stem == "__init__")
    return path.parents[levels]

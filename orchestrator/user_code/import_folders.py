"""The folders from which the classes and functions that a config names are imported."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestrator.user_code.installed import is_installed
from orchestrator.user_code.named_classes import MAIN, find_import_paths


def list_import_folders(config: Any) -> list[Path]:
    """Return the folders to import the named classes from, without those of installed packages."""
    modules = [sys.modules.get(module) for module, _ in find_import_paths(config)]
    folders = dict.fromkeys(_find_import_folder(module) for module in modules if module)
    return [folder for folder in folders if folder]


def _find_import_folder(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == MAIN:
        return None
    path = Path(file).absolute()
    if is_installed(str(path)):
        return None
    levels = module.__name__.count(".") + (path.stem == "__init__")
    return path.parents[levels]

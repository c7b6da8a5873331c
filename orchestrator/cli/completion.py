"""Shell completion, from the names of files alone: Tab imports neither torch nor ray."""

from __future__ import annotations

from glob import glob
from pathlib import Path

_WITHOUT_HOOKS = ("metrics", "parts")
"""Folders of the package `hooks` that hold no hooks."""


def run_folders(incomplete: str) -> list[str]:
    """Complete the runs and sweeps in `runs`, or in the folder that was typed."""
    parent = incomplete.rpartition("/")[0] if "/" in incomplete else "runs"
    folders = sorted(file.removesuffix("/run.json") for file in glob(f"{parent}/*/run.json"))
    return [folder for folder in folders if folder.startswith(incomplete) and folder.isprintable()]


def hook_names(incomplete: str) -> list[str]:
    """Complete the hooks that ship; each has a file of its name."""
    import hooks

    files = Path(hooks.__file__).parent.glob("*/*.py")
    names = sorted(file.stem for file in files if file.parent.name not in _WITHOUT_HOOKS and file.stem != "__init__")
    return [name for name in names if name.startswith(incomplete)]

"""Shell completion, from the names of files alone: Tab imports neither torch nor ray."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any

import typer

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


def override_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the keys of the experiment file with their values, and the hooks that ship."""
    entries = [f"{key}={value}" for key, value in _leaves(_content(ctx.params.get("config")))]
    entries = [entry for entry in entries if entry.startswith(incomplete)]
    if incomplete.startswith("hooks."):
        known = {entry.partition("=")[0].split(".")[1] for entry in entries}
        names = hook_names(incomplete.removeprefix("hooks."))
        entries += [f"hooks.{name}=true" for name in names if name not in known]
    return entries


def _content(file: str | Path | None, depth: int = 8) -> dict[str, Any]:
    """Read a file laid over its bases, by top-level key; skip files that cannot be read."""
    import yaml

    try:
        path = Path(file or "")
        own = dict(yaml.safe_load(path.read_text()))
        base = own.get("base", [])
        bases = [
            _content(path.parent / name, depth - 1) for name in ([base] if isinstance(base, str) else base) if depth
        ]
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return {}
    return dict(ChainMap(own, *reversed(bases)))


def _leaves(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted path and value of each number and word, without the sweep's."""
    for key, value in data.items():
        if isinstance(value, dict) and (path or key != "sweep"):
            yield from _leaves(value, f"{path}{key}.")
        elif isinstance(value, str | int | float) and key != "base":
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if f"{path}{key}{text}".isprintable() and " " not in text:
                yield f"{path}{key}", text

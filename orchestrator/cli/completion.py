"""What the shell may complete, from the names of files alone: a Tab imports neither torch nor ray."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any

import typer

_WITHOUT_HOOKS = ("metrics", "parts")
"""Folders of the package `hooks` in which no hook lies."""


def run_folders(incomplete: str) -> list[str]:
    """The runs and sweeps in `runs`, or in the folder that has been typed."""
    above = incomplete.rpartition("/")[0] if "/" in incomplete else "runs"
    found = sorted(file.removesuffix("/run.json") for file in glob(f"{above}/*/run.json"))
    return [folder for folder in found if folder.startswith(incomplete) and folder.isprintable()]


def hook_names(incomplete: str) -> list[str]:
    """The hooks that ship: each lies in a file of its name."""
    import hooks

    files = Path(hooks.__file__).parent.glob("*/*.py")
    names = sorted(file.stem for file in files if file.parent.name not in _WITHOUT_HOOKS and file.stem != "__init__")
    return [name for name in names if name.startswith(incomplete)]


def override_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """The keys of the experiment's file with their values, to be changed, and the hooks that ship."""
    found = [
        f"{key}={value}" for key, value in _leaves(_written(ctx.params.get("config"))) if key.startswith(incomplete)
    ]
    if incomplete.startswith("hooks."):
        known = {key.rpartition("=")[0].split(".")[1] for key in found}
        found += [f"hooks.{name}=true" for name in hook_names(incomplete.removeprefix("hooks.")) if name not in known]
    return found


def _written(file: str | Path | None, deepest: int = 8) -> dict[str, Any]:
    """What a file and its bases hold, key by key; nothing of those that cannot be read."""
    import yaml

    try:
        path = Path(file or "")
        own = dict(yaml.safe_load(path.read_text()))
        base = own.get("base", [])
        below = [
            _written(path.parent / name, deepest - 1) for name in ([base] if isinstance(base, str) else base) if deepest
        ]
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return {}
    return dict(ChainMap(own, *reversed(below)))


def _leaves(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Dotted path and value of each number and word; a sweep is no setting of its trials."""
    for key, value in data.items():
        if isinstance(value, dict) and (path or key != "sweep"):
            yield from _leaves(value, f"{path}{key}.")
        elif (
            isinstance(value, str | int | float)
            and f"{path}{key}{value}".isprintable()
            and " " not in str(value)
            and key != "base"
        ):
            yield f"{path}{key}", str(value).lower() if isinstance(value, bool) else str(value)

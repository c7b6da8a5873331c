"""What of an experiment is a hyperparameter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PATH = re.compile(r"(^|_)(path|dir|folder|storage)$")


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """The hyperparameters of an experiment by dotted key: all but its sweep and its paths, so that all trials of a
    sweep have the same keys. None is "none"; lists are written out."""
    flat: dict[str, bool | int | float | str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update({} if key == "sweep" and not prefix else flatten(value, f"{prefix}{key}."))
        elif not _PATH.search(key):
            plain = isinstance(value, bool | int | float | str)
            flat[f"{prefix}{key}"] = value if plain else "none" if value is None else str(value)
    return flat

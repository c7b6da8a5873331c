"""The hyperparameters of an experiment."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_PATH = re.compile(r"(^|_)(path|dir|folder|storage)$")
_Value = bool | int | float | str


def flatten(config: Mapping[str, Any]) -> dict[str, _Value]:
    """Return the hyperparameters by dotted key, without the sweep and paths, those in which trials differ first.

    All trials of a sweep have the same keys. None is "none", as is a key that this trial lacks because its hook is
    off. A mapping that some trials lack, such as that hook, has a key of its own: "on" or "none".
    """
    space: Mapping[str, Mapping[str, list[Any]]] = (config.get("sweep") or {}).get("space") or {}
    options = [(path, option) for path, domain in space.items() for values in domain.values() for option in values]
    swept = [key for path, option in options for key, _ in _leaves({path: option}, "", ())]
    own = _leaves({name: value for name, value in config.items() if name != "sweep"}, "", swept)
    return {**dict.fromkeys(swept, "none"), **dict(own)}


def _leaves(config: Mapping[str, Any], prefix: str, mappings: Collection[str]) -> Iterator[tuple[str, _Value]]:
    """Yield all values that are no mappings by their keys, and "on" for the given mappings."""
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if key in mappings:
                yield key, "on"
            yield from _leaves(value, f"{key}.", mappings)
        elif not _PATH.search(name):
            yield key, value if isinstance(value, bool | int | float | str) else "none" if value is None else str(value)

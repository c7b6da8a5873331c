"""What of an experiment is a hyperparameter."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_PATH = re.compile(r"(^|_)(path|dir|folder|storage)$")


def flatten(config: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """The hyperparameters of an experiment by dotted key, all but its sweep and its paths; None is "none", lists are
    written out.

    All trials of a sweep have the same keys. What a trial has not, as it is in a hook that is off, is "none"; what is a
    mapping in some trials and nothing in others, such as that hook, has a key of its own: "on" or "none". Those in
    which trials differ come first.
    """
    differing = swept(config)
    own = _leaves({name: value for name, value in config.items() if name != "sweep"}, "", differing)
    return {**dict.fromkeys(differing, "none"), **dict(own)}


def swept(config: Mapping[str, Any]) -> dict[str, bool]:
    """The keys in which the trials of a sweep may differ, and whether each is a number in all of them: from what the
    sweep says, so that it is the same for each trial. None outside a sweep."""
    space: Mapping[str, Mapping[str, list[Any]]] = (config.get("sweep") or {}).get("space") or {}
    values: dict[str, list[Any]] = {}
    for path, domain in space.items():
        for option in (option for options in domain.values() for option in options):
            for key, value in _leaves({path: option}, "", ()):
                values.setdefault(key, []).append(value)
    return {
        key: not any(isinstance(value, bool | str) for value in of) and not _may_lack(key, values)
        for key, of in values.items()
    }


def _may_lack(key: str, keys: Collection[str]) -> bool:
    """Whether what the key is in is nothing in some trials."""
    return any(key.startswith(f"{other}.") for other in keys)


def _leaves(
    config: Mapping[str, Any], prefix: str, named: Collection[str]
) -> Iterator[tuple[str, bool | int | float | str]]:
    """What is no mapping, by its key; of mappings, those that are `named`."""
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if key in named:
                yield key, "on"
            yield from _leaves(value, f"{key}.", named)
        elif not _PATH.search(name):
            yield key, value if isinstance(value, bool | int | float | str) else "none" if value is None else str(value)

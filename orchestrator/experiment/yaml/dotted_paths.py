"""Dotted paths, such as `hooks.ema.decay`, and the values that they lead to in plain data."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from orchestrator.errors import ConfigError, shorten, shorten_value
from orchestrator.experiment.yaml.dialect import MAX_DEPTH

_NAMED = ("sweep.scheduler", "sweep.search")
"""Paths whose mapping may be written as its `type` alone."""


def join(path: str, key: object) -> str:
    """Append a key to a dotted path."""
    return f"{path}.{key}" if path else str(key)


def is_within(path: str, outer: str) -> bool:
    """Return whether a dotted path is `outer`, or below it."""
    return path == outer or path.startswith(f"{outer}.")


def list_prefixes(path: str) -> Iterator[str]:
    """Iterate over the prefixes of a dotted path, the shortest first, the path itself last."""
    return accumulate(path.split("."), join)


def with_value(data: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the data with a value set at a dotted path; the original stays unchanged.

    Creates mappings on the way, also in place of null, true and false. A number, from 0, selects an
    entry of a list. Raises ConfigError where the path leads through any other value.
    """
    check_path(path)
    changed: dict[str, Any] = _with_value(data, _split(path), 0, value)
    return changed


def expand_short_form(value: Any, path: str) -> Any:
    """Return the mapping that a name stands for at one of _NAMED; any other value unchanged."""
    return {"type": value} if path in _NAMED and isinstance(value, str) else value


def check_path(path: str) -> None:
    """Raise ConfigError for a dotted path that is deeper than any config."""
    count = path.count(".") + 1
    if count > MAX_DEPTH:
        raise ConfigError.at(shorten(path), f"has {count} keys; at most {MAX_DEPTH} are allowed")


def _split(path: str) -> list[str]:
    """Split a dotted path into keys; the keys of a sweep's space are dotted paths themselves."""
    keys = path.split(".")
    if keys[:2] == ["sweep", "space"] and len(keys) > 2:
        return [*keys[:2], ".".join(keys[2:])]
    return keys


def _with_value(data: Any, keys: Sequence[str], depth: int, value: Any) -> Any:
    if depth == len(keys):
        return value
    if data is None or isinstance(data, bool):
        data = {}
    key = keys[depth]
    parent = ".".join(keys[:depth])
    data = expand_short_form(data, parent)
    if isinstance(data, Mapping):
        return {**data, key: _with_value(data.get(key), keys, depth + 1, value)}
    if isinstance(data, list) and key.isdecimal() and int(key) < len(data):
        changed = list(data)
        changed[int(key)] = _with_value(data[int(key)], keys, depth + 1, value)
        return changed

    if isinstance(data, list):
        shown = f"a list of {len(data)}, numbered from 0"
    else:
        shown = f"{shorten_value(data)}, not a mapping"
    raise ConfigError.at(".".join(keys), f"cannot be set: {parent} is {shown}")

"""Differences between configs: of runs, of sweeps, or of the environments that they ran in."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any


def find_config_differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return one value per config for each dotted path that differs, except the name; None if the
    path is missing."""
    flat = [dict(flatten(config)) for config in configs]
    paths = dict.fromkeys(chain.from_iterable(flat))
    paths.pop("name", None)

    differences = {}
    for path in paths:
        values = [config.get(path) for config in flat]
        if len({_make_key(value) for value in values}) > 1:
            differences[path] = values
    return differences


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a config with their dotted paths; an empty mapping is a value."""
    if not isinstance(value, Mapping) or not value:
        yield path, value
        return
    for key, inner in value.items():
        yield from flatten(inner, f"{path}.{key}" if path else str(key))


def _make_key(value: Any) -> str:
    """Return a value as text; the same for 1 and 1.0, but not for 1, true and the text "1"."""
    text = json.dumps(value, default=str)
    return json.dumps(json.loads(text, parse_float=_read_number))


def _read_number(text: str) -> int | float:
    """Return a whole number as an integer, since a float would round a large one."""
    number = float(text)
    return int(number) if number.is_integer() else number

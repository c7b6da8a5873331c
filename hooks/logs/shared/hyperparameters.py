"""The hyperparameters of an experiment, as trackers show them."""

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any

_PATH = re.compile(r"(^|_)(path|dir|folder|storage)$")
"""Names of settings that are paths, in which trials differ for no other reason."""
_Value = bool | int | float | str


def flatten_config(config: Mapping[str, Any]) -> dict[str, _Value]:
    """Return the hyperparameters by dotted key, without the sweep and paths, those in which trials
    differ first.

    All trials of a sweep have the same keys. None is "none", as is a key that this trial lacks
    because its hook is off. A mapping that some trials lack, such as that hook, has a key of its
    own: "on" or "none".
    """
    space: Mapping[str, Mapping[str, list[Any]]] = (config.get("sweep") or {}).get("space") or {}
    flat: dict[str, _Value] = {}
    for path, domain in space.items():
        for option in chain.from_iterable(domain.values()):
            for key, _ in _list_leaves({path: option}, "", ()):
                flat[key] = "none"

    own = {name: value for name, value in config.items() if name != "sweep"}
    flat.update(_list_leaves(own, "", set(flat)))
    return flat


def _list_leaves(
    config: Mapping[str, Any], prefix: str, mappings: Collection[str]
) -> Iterator[tuple[str, _Value]]:
    """Yield all values that are no mappings by their keys, and "on" for the given mappings."""
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if key in mappings:
                yield key, "on"
            yield from _list_leaves(value, f"{key}.", mappings)
        elif not _PATH.search(name):
            yield key, _simplify(value)


def _simplify(value: Any) -> _Value:
    if value is None:
        return "none"
    return value if isinstance(value, _Value) else str(value)

"""Encoding of checkpoint values: placeholders for sharded tensors and for types that torch cannot
load."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.serialization import add_safe_globals, get_safe_globals

from hooks.distributed import sharded_tensors as shards
from hooks.errors import add_article
from orchestrator.errors import RunError

INDEX = "shards.pt"
"""File that describes the shards."""
_SHARDED = "hookyard.sharded"
_ENCODED = "hookyard.encoded"
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)
_VALUES = {
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    type(None),
    torch.Size,
    torch.dtype,
    torch.device,
}
"""Types that `weights_only=True` reads; subclasses are other types."""
_FACTORIES: dict[str, Any] = {
    kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)
}
_NUMPY_SCALARS = {numpy.dtype(kind).type for kind in "?bhilqBHILQefdFD"}

# Metrics are often numpy scalars.
_make_scalar: Any = numpy.float64(0).__reduce__()[0]
add_safe_globals([_make_scalar, numpy.dtype, *{type(numpy.dtype(kind)) for kind in _NUMPY_SCALARS}])


def shard_file(rank: int) -> str:
    """Return the name of the file with a rank's shards."""
    return f"shards-{rank:04d}.pt"


def has_shards(file: str) -> bool:
    """Return whether a file of a checkpoint is the index or holds shards."""
    return file == INDEX or file.startswith("shards-")


Sharded = dict[int, tuple[str, Any]]
"""Sharded tensors of a checkpoint, each with its key: the path at which it was first seen. By `id`,
because a tensor with several names has one key; in the order in which they were seen, the same on
each rank."""


def encode(tree: Any, sharded: Sharded | None = None, place: str = "") -> Any:
    """Return nested containers with placeholders. Sharded tensors are collected in `sharded`.

    Containers without placeholders are not copied. Raises RunError at the path `place` for a value
    that torch refuses.
    """
    kind = type(tree)
    if kind in _VALUES or kind in _NUMPY_SCALARS or isinstance(tree, torch.layout):
        return tree
    if isinstance(tree, Tensor) and sharded is not None and shards.is_sharded(tree):
        if tree.ndim == 0:
            raise RunError(
                f"a checkpoint cannot hold {place}, a sharded tensor without dimensions, which has"
                " no rows to share. Use its full_tensor()"
            )
        return {_SHARDED: sharded.setdefault(id(tree), (place, tree))[0]}
    if isinstance(tree, Tensor) and _is_readable(kind):
        encode(vars(tree), None, f"{place}.__dict__")
        return tree
    if kind in _CONTAINERS:
        return _encode_container(tree, sharded, place)
    if (parts := _parts(tree)) is not None:
        name, *values = parts
        return {_ENCODED: name, "parts": encode(values, sharded, place)}

    what = add_article(f"{kind.__module__}.{kind.__name__}")
    if shards.is_sharded(tree):
        what = "a tensor sharded across ranks"
    raise RunError(
        f"a checkpoint cannot hold {place}, {what}. Use tensors (numpy: torch.from_numpy), numbers, text, and lists,"
        " tuples, sets and dicts of them"
    )


def _is_readable(kind: type) -> bool:
    """Return whether `weights_only=True` reads tensors of a type."""
    return kind in (Tensor, nn.Parameter) or kind in _get_registered_types()


def _encode_container(tree: Any, sharded: Sharded | None, place: str) -> Any:
    for key in tree if isinstance(tree, dict) else ():
        if type(key) in _VALUES:
            continue
        if encode(key, None, f"the key {key!r} of {place}") is not key:
            raise RunError(
                f"a checkpoint cannot hold the key {key!r} of {place}. Use numbers, text, and tuples of them"
            )

    def encode_entry(key: Any, value: Any) -> Any:
        entry_place = f"{place}[{key!r}]" if place else str(key)
        return encode(value, sharded, entry_place)

    return _replace(tree, encode_entry)


def decode(tree: Any) -> Any:
    """Return the values that were encoded; only sharded tensors remain placeholders."""
    if isinstance(tree, dict) and _ENCODED in tree:
        return _rebuild(tree[_ENCODED], *decode(tree["parts"]))
    return _replace(tree, lambda _, value: decode(value))


def keys_in(tree: Any) -> Iterator[str]:
    """Yield the keys of the sharded tensors, in order."""
    if isinstance(tree, dict) and _SHARDED in tree:
        yield tree[_SHARDED]
        return
    for value in _values(tree):
        yield from keys_in(value)


def fill(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return a copy in which sharded tensors replace their placeholders."""
    if isinstance(tree, dict) and _SHARDED in tree:
        return tensors[tree[_SHARDED]]
    return _replace(tree, lambda _, value: fill(value, tensors))


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested containers, in order."""
    if isinstance(tree, Tensor):
        yield tree
    for value in _values(tree):
        yield from tensors_in(value)


def _get_registered_types() -> list[Any]:
    return [entry[0] if isinstance(entry, tuple) else entry for entry in get_safe_globals()]


def _parts(value: Any) -> list[Any] | None:
    """Return the name of a type that `weights_only=True` cannot read, and the arguments to rebuild
    the value."""
    if type(value) is deque:
        return ["deque", [*value], value.maxlen]
    if type(value) is frozenset:
        return ["frozenset", [*value]]
    if type(value) is defaultdict:
        factory: Any = value.default_factory
        name = factory.__name__ if factory in _FACTORIES.values() else factory
        return ["defaultdict", name, {**value}]
    return None


def _rebuild(name: str, *parts: Any) -> Any:
    if name == "deque":
        return deque(*parts)
    if name == "frozenset":
        return frozenset(*parts)
    factory, entries = parts
    return defaultdict(_FACTORIES[factory] if factory else None, entries)


def _values(tree: Any) -> Any:
    if isinstance(tree, dict):
        return tree.values()
    return tree if isinstance(tree, list | tuple | set | frozenset | deque) else ()


def _replace(tree: Any, replace: Callable[[Any, Any], Any]) -> Any:
    """Return a copy of a container with new values, or the container itself if nothing changes."""
    if isinstance(tree, dict):
        result = tree
        for key, value in tree.items():
            new = replace(key, value)
            if new is value:
                continue
            if result is tree:
                result = copy(tree)  # keeps the attributes of a module's state dict
            result[key] = new  # a Counter's update() would add
        return result
    if type(tree) in (list, tuple, set, frozenset, deque):
        values = [replace(index, value) for index, value in enumerate(tree)]
        if all(new is value for new, value in zip(values, tree, strict=True)):
            return tree
        return deque(values, tree.maxlen) if type(tree) is deque else type(tree)(values)
    return tree

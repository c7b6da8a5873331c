"""Marks: what stands in a checkpoint's files for a tensor whose shards lie in files of their own. Torch is all it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from torch import Tensor

from hooks.parts import sharded_tensors as shards

INDEX = "shards.pt"
"""The file that says where the shards are."""
_MARK = "hookyard.sharded"


def file_of(rank: int) -> str:
    """The file of a rank's shards."""
    return f"shards-{rank:04d}.pt"


def is_of_shards(file: str) -> bool:
    """Whether a file of a checkpoint is the index or holds shards."""
    return file == INDEX or file.startswith("shards-")


def marked(tree: Any, sharded: dict[str, Any], path: str = "") -> Any:
    """A copy of nested dicts and lists with a mark for each sharded tensor, which goes into `sharded` by its key."""
    if isinstance(tree, Tensor):
        if not shards.is_sharded(tree):
            return tree
        sharded[path] = tree
        return {_MARK: path}
    return _rebuilt(tree, lambda key, value: marked(value, sharded, f"{path}/{key}"))


def keys_in(tree: Any) -> list[str]:
    """The keys of what is marked."""
    keys: list[str] = []

    def look(value: Any) -> Any:
        if isinstance(value, dict) and _MARK in value:
            keys.append(value[_MARK])
            return value
        return _rebuilt(value, lambda _, inner: look(inner))

    look(tree)
    return keys


def filled(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """A copy of what was marked, with the tensors in their places again."""
    if isinstance(tree, dict) and _MARK in tree:
        return tensors[tree[_MARK]]
    return _rebuilt(tree, lambda _, value: filled(value, tensors))


def _rebuilt(tree: Any, of: Callable[[Any, Any], Any]) -> Any:
    """A dict or list with other values; anything else as it is."""
    if isinstance(tree, dict):
        again = copy(tree)  # a module's state dict has more to it than its items
        again.update({key: of(key, value) for key, value in tree.items()})
        return again
    if type(tree) in (list, tuple):
        return type(tree)(of(index, value) for index, value in enumerate(tree))
    return tree

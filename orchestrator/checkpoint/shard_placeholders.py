"""Placeholders: what stands in a checkpoint's files for a tensor whose shards lie in files of their own. Torch is all
it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from torch import Tensor

from hooks.parts import sharded_tensors as shards

INDEX = "shards.pt"
"""The file that says where the shards are."""
_KEY = "hookyard.sharded"


def shard_file(rank: int) -> str:
    """The file of a rank's shards."""
    return f"shards-{rank:04d}.pt"


def has_shards(file: str) -> bool:
    """Whether a file of a checkpoint is the index or holds shards."""
    return file == INDEX or file.startswith("shards-")


def without_shards(tree: Any, sharded: dict[str, Any], path: str = "") -> Any:
    """A copy of nested dicts and lists with a placeholder for each sharded tensor, which goes into `sharded` by its
    key."""
    if isinstance(tree, Tensor):
        if not shards.is_sharded(tree):
            return tree
        sharded[path] = tree
        return {_KEY: path}
    if not isinstance(tree, dict | list | tuple):
        return tree
    return _rebuilt(tree, lambda key, value: without_shards(value, sharded, f"{path}/{key}"))


def keys_in(tree: Any) -> list[str]:
    """The keys of the placeholders, in order."""
    if not isinstance(tree, dict | list | tuple):
        return []
    if isinstance(tree, dict) and _KEY in tree:
        return [tree[_KEY]]
    return [key for value in (tree.values() if isinstance(tree, dict) else tree) for key in keys_in(value)]


def filled(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """A copy with the tensors in place of their placeholders."""
    if isinstance(tree, dict) and _KEY in tree:
        return tensors[tree[_KEY]]
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

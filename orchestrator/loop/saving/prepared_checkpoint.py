"""A checkpoint that a rank is about to write."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Entries = Mapping[str, dict[str, Any]]
"""Entries of a manifest, by the names of the files."""


@dataclass(frozen=True)
class PreparedCheckpoint:
    """A checkpoint that this rank is about to write."""

    name: str
    files: Mapping[str, Any]
    """Contents of this rank's files."""
    commit: Callable[[Entries], None]
    """Function that publishes the checkpoint, once all ranks have written the files of these
    entries."""
    has_shards: bool
    """True if each rank writes shards of tensors."""

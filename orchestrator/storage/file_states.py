"""Sizes and ages of files, from what pyarrow says of them."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Self


class FileState(NamedTuple):
    """Size and age of a file."""

    size_bytes: int
    modified: float | None
    """Unix time by the store's clock; None if the store does not provide it."""

    @classmethod
    def from_info(cls, info: Any) -> Self:
        """Return the state in a `FileInfo` of pyarrow."""
        return cls(info.size, info.mtime and info.mtime.timestamp())


def make_tree(folder: str, infos: Iterable[Any]) -> dict[str, FileState]:
    """Return the states of the files among pyarrow's infos of a folder, sorted by the path in it."""
    states = {}
    for info in infos:
        if info.is_file:
            states[info.path.removeprefix(folder).lstrip("/")] = FileState.from_info(info)
    return dict(sorted(states.items()))

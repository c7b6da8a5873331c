"""The operations that a storage asks of the place where its files are."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from orchestrator.storage.file_states import FileState

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Backend(Protocol):
    """Files of one kind of store: those of this machine (`LocalFiles`), or remote ones
    (`RemoteFiles`).

    A path is absolute on this machine, or begins with the bucket on an object store. An operation
    raises StorageError if the store fails. `Storage` documents the operations.
    """

    @property
    def filesystem(self) -> Any:
        """pyarrow's file system; None for this machine's."""

    @property
    def verifies_uploads(self) -> bool:
        """Whether the store verifies what is written."""

    def get_local_path(self, path: str) -> Path | None:
        """Return a path on this machine; None for a remote one."""

    def reach(self, path: str) -> None:
        """Raise UsageError if the store does not answer."""

    def check_present(self, path: str) -> None:
        """Raise StorageError if a folder is missing that may be an unmounted share."""

    def map(self, call: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Return the results of a function for all items, as fast as the store answers."""

    # Listing

    def exists(self, path: str) -> bool: ...

    def read_state(self, path: str) -> FileState | None: ...

    def list_names(self, path: str) -> list[str]: ...

    def list_tree(self, path: str) -> dict[str, FileState]: ...

    def list_unfinished(self, path: str) -> dict[str, int]: ...

    def read_link(self, path: str) -> Path | None: ...

    def list_folder_links(self, path: str) -> dict[str, Path]: ...

    # Reading

    def read(self, path: str, start: int) -> bytes: ...

    def read_chunks(self, path: str) -> Iterator[bytes]: ...

    def open_copy(self, path: str) -> AbstractContextManager[IO[bytes]]: ...

    def open(self, path: str) -> Any: ...

    # Writing

    def create(self, path: str) -> AbstractContextManager[IO[bytes]]: ...

    def append(self, path: str, data: bytes) -> None: ...

    def open_stream(self, path: str, start: bytes) -> IO[bytes]: ...

    def link(self, path: str, source: Path) -> bool: ...

    def rename(self, path: str, new_path: str) -> None: ...

    def delete(self, path: str) -> None: ...

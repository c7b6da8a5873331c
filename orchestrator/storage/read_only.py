"""A storage that is only read."""

from typing import NoReturn

from orchestrator.errors import StorageError
from orchestrator.storage.storage import Storage


class ReadOnlyStorage(Storage):
    """A storage to which this process does not write, although it may be able to.

    So are all storages inside it. Each method that writes raises StorageError, as if permission
    were missing.
    """

    @property
    def _writer(self) -> NoReturn:
        raise StorageError(f"{self} is only read here")

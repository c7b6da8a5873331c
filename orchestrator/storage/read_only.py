"""A storage that is only read."""

from typing import Any

from orchestrator.errors import StorageError
from orchestrator.storage.storage import Storage


class ReadOnlyStorage(Storage):
    """A storage to which this process does not write, although it may be able to.

    So are all storages inside it. Each method that writes raises StorageError, as if permission
    were missing.
    """

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise StorageError(f"{self} is only read here")

    create = append = link = open_stream = rename = delete = delete_leftovers = _refuse

"""What remote files do otherwise than those of this machine; what both do is in test_storage."""

import io
import uuid

import pytest

from orchestrator.storage import Storage
from orchestrator.storage.remote_files import RemoteFiles


def test_a_missing_file_can_be_deleted_but_not_read() -> None:
    files = RemoteFiles(f"memory://{uuid.uuid4().hex}")
    path = f"{files.root}/none"
    with pytest.raises(FileNotFoundError):
        files.read(path, 0)
    files.delete(path)


def test_a_remote_store_has_no_links_and_no_files_that_grow() -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    storage.write("a", "text")
    assert not storage.link("b", storage, "a")
    assert (storage.link_target, storage.folder_links(), storage.local) == (None, {}, None)
    storage.delete_leftovers(lambda pid: False)
    storage.check_present()
    with pytest.raises(io.UnsupportedOperation, match="cannot rename"):
        storage.rename("a", "b")
    with pytest.raises(io.UnsupportedOperation, match="cannot grow"):
        storage.open_stream("b", b"")
    assert [*storage.tree()] == ["a"]

"""What remote files do otherwise than those of this machine; what both do is in test_storage."""

import io
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import StorageError
from orchestrator.storage import Storage, remote_requests
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
    assert storage.list_unfinished() == {}
    storage.check_present()
    with pytest.raises(io.UnsupportedOperation, match="cannot rename"):
        storage.rename("a", "b")
    with pytest.raises(io.UnsupportedOperation, match="cannot grow"):
        storage.open_stream("b", b"")
    assert [*storage.tree()] == ["a"]


class FailingStore:
    """A store that fails when an upload begins (`open`) or ends (`close`), and deletes what it is
    told to.

    S3 keeps the former file until an upload has ended. Other file systems, such as SFTP, truncate
    it when the upload begins.
    """

    def __init__(self, filesystem: Any, type_name: str) -> None:
        self._filesystem = filesystem
        self.type_name = type_name
        self.fails_at = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)

    def open_output_stream(self, path: str, compression: None) -> Any:
        if self.fails_at == "open":
            raise OSError("quota exceeded")
        if not self.fails_at:
            return self._filesystem.open_output_stream(path)
        if self.type_name != "s3":
            with self._filesystem.open_output_stream(path) as stream:
                stream.write(b"incompl")
        return BrokenStream()


class BrokenStream(io.BytesIO):
    """An upload that fails at its end."""

    def close(self) -> None:
        super().close()
        raise OSError("quota exceeded")


def open_failing(monkeypatch: pytest.MonkeyPatch, type_name: str) -> tuple[Storage, FailingStore]:
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    store = FailingStore(storage.filesystem, type_name)
    monkeypatch.setattr(remote_requests, "open_filesystem", lambda location: (store, storage.root))
    monkeypatch.setattr(remote_requests, "with_retries", lambda filesystem, retries: filesystem)
    return Storage(storage.location), store


def write(storage: Storage, name: str) -> None:
    storage.write(name, b"newer")


def append(storage: Storage, name: str) -> None:
    storage.append(name, "newer")


def create(storage: Storage, name: str) -> None:
    with storage.create(name) as file:
        file.write(b"newer")


@pytest.mark.parametrize("upload", [write, append, create])
@pytest.mark.parametrize(
    ("type_name", "fails_at", "stored"),
    [
        ("s3", "open", b"former"),
        ("s3", "close", b"former"),
        ("sftp", "open", b"former"),
        ("sftp", "close", b"incompl"),
    ],
)
def test_failed_upload_over_a_file_deletes_nothing(
    upload: Callable[[Storage, str], None],
    type_name: str,
    fails_at: str,
    stored: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, store = open_failing(monkeypatch, type_name)
    storage.write("run.json", b"former")
    store.fails_at = fails_at
    with pytest.raises(StorageError, match="quota exceeded"):
        upload(storage, "run.json")
    assert storage.read("run.json") == stored


@pytest.mark.parametrize("type_name", ["s3", "sftp"])
@pytest.mark.parametrize("fails_at", ["open", "close"])
def test_failed_upload_of_a_new_file_leaves_none(
    type_name: str, fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, store = open_failing(monkeypatch, type_name)
    store.fails_at = fails_at
    with pytest.raises(StorageError, match="quota exceeded"):
        storage.write("run.json", b"newer")
    assert [*storage.tree()] == []

"""One rank's files on an object store, by a clock that the test moves; on a disk they are in test_recorder."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import IO, Any

import pyarrow as pa
import pytest

from orchestrator.errors import StorageError
from orchestrator.stats.rank_files import RankFiles
from orchestrator.stats.tables import read_batches
from orchestrator.storage import Storage
from tests.told_time import ToldTime

FOLDER = "stats/attempt=0/rank=0"


@pytest.fixture
def storage() -> Iterator[Storage]:
    storage = Storage(f"memory://test-{uuid.uuid4().hex}")
    yield storage
    storage.delete("")


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> ToldTime:
    time = ToldTime()
    monkeypatch.setattr("orchestrator.stats.rank_files.Event", lambda: time)
    return time


@pytest.fixture
def files(storage: Storage, time: ToldTime) -> Iterator[RankFiles]:
    files = RankFiles(storage, FOLDER, {"rank": 0}, upload_interval_s=30)
    yield files
    time.set()


def write(files: RankFiles, *numbers: float) -> None:
    for number in numbers:
        files.write("rows", {"n": pa.array([number])}, 1)


def sent(storage: Storage) -> list[list[float]]:
    """The rows in each object."""
    streams = [storage.read(f"{FOLDER}/{name}") for name in storage.names(FOLDER)]
    return [[row["n"] for batch in read_batches(stream) for row in batch.to_pylist()] for stream in streams]


def test_what_is_new_is_sent_after_the_interval_as_an_object_of_its_own(storage: Storage, files: RankFiles, time: ToldTime) -> None:
    write(files, 1, 2)
    time.advance(29)
    assert sent(storage) == []
    time.advance(1)
    assert sent(storage) == [[1, 2]]
    write(files, 3)
    time.advance(29)
    write(files, 4)
    assert sent(storage) == [[1, 2]]
    time.advance(1)
    assert sent(storage) == [[1, 2], [3, 4]]
    time.advance(300)
    assert sent(storage) == [[1, 2], [3, 4]], "nothing new, nothing sent"
    files.close()
    assert sent(storage) == [[1, 2], [3, 4]]


def test_a_sync_sends_all_at_once_and_a_new_column_does_not_wait_for_it(storage: Storage, files: RankFiles, time: ToldTime) -> None:
    write(files, 1, 2.5)
    assert sent(storage) == [], "a new file begins, and the one before it is not waited for"
    files.sync()
    assert sent(storage) == [[1], [2.5]]
    time.advance(30)
    write(files, 3)
    files.close()
    assert sent(storage) == [[1], [2.5], [3]]


def refusing(monkeypatch: pytest.MonkeyPatch, times: int) -> Callable[[], int]:
    """A store that fails the next calls; gives how many more it will fail."""
    send, left = Storage.send, [times]

    def failing(self: Storage, stream: IO[bytes], name: str) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise StorageError("storage memory://x does not answer")
        send(self, stream, name)

    monkeypatch.setattr(Storage, "send", failing)
    return lambda: left[0]


def test_what_could_not_be_sent_is_kept_and_sent_with_the_next(
    storage: Storage, files: RankFiles, time: ToldTime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = refusing(monkeypatch, 2)
    write(files, 1)
    time.advance(30)
    write(files, 2)
    time.advance(30)
    assert (sent(storage), left()) == ([], 0)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"rows of {FOLDER} cannot be sent; they are kept, and tried again: storage memory://x does not answer"
    ]
    write(files, 3)
    time.advance(30)
    assert sent(storage) == [[1], [2], [3]]


def test_a_sync_raises_where_the_store_stays_away_and_the_next_one_loses_nothing(
    storage: Storage, files: RankFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, 1)
    write(files, 1)
    with pytest.raises(StorageError, match="does not answer"):
        files.sync()
    write(files, 2)
    files.sync()
    assert sent(storage) == [[1], [2]]


def test_training_does_not_wait_for_an_upload_that_takes_long_and_a_sync_does(
    storage: Storage, files: RankFiles, time: ToldTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, begun, may_end = Storage.send, threading.Event(), threading.Event()

    def slow(self: Storage, stream: IO[bytes], name: str) -> Any:
        begun.set()
        may_end.wait()
        send(self, stream, name)

    monkeypatch.setattr(Storage, "send", slow)
    write(files, 1)
    advancing = threading.Thread(target=time.advance, args=(30,))
    advancing.start()
    begun.wait()
    write(files, 2, 3.5, 4)
    assert sent(storage) == []
    syncing = threading.Thread(target=files.sync)
    syncing.start()
    assert syncing.is_alive()
    may_end.set()
    syncing.join()
    advancing.join()
    assert sent(storage) == [[1], [2], [3.5, 4.0]]


def test_in_a_folder_there_is_no_thread_and_nothing_to_send(tmp_path: Any, time: ToldTime) -> None:
    before = threading.enumerate()
    files = RankFiles(Storage(tmp_path), FOLDER, {}, upload_interval_s=30)
    write(files, 1, 2)
    files.sync()
    write(files, 3)
    assert sent(Storage(tmp_path)) == [[1, 2, 3]]
    assert set(threading.enumerate()) <= set(before)
    files.close()

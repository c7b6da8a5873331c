"""One rank's files on an object store, by a clock that the test moves; on a disk they are in
test_recorder."""

import errno
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from orchestrator.disk.rows import part_rewriter, parts
from orchestrator.disk.rows.file_format import read_stream
from orchestrator.disk.rows.rank_files import RankFiles
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.errors import StorageError
from orchestrator.storage import Storage
from tests.manual_clock import ManualClock

FOLDER = "stats/attempt=0/rank=0"


@pytest.fixture
def storage() -> Iterator[Storage]:
    storage = Storage(f"memory://test-{uuid.uuid4().hex}")
    yield storage
    storage.delete("")


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    time = ManualClock()
    monkeypatch.setattr("orchestrator.disk.rows.periodic_upload.Event", lambda: time)
    return time


@pytest.fixture
def files(storage: Storage, time: ManualClock) -> Iterator[RankFiles]:
    files = RankFiles(storage, FOLDER, {"rank": 0}, upload_interval_s=30)
    yield files
    time.set()


def write(files: RankFiles, *numbers: float) -> None:
    for number in numbers:
        files.write("rows", {"n": pa.array([number])}, 1)


def sent(storage: Storage) -> list[list[float]]:
    """The rows in each object."""
    found = []
    for name in storage.names(FOLDER):
        batches = read_stream(storage.read(f"{FOLDER}/{name}"), name).batches
        found.append(pa.Table.from_batches(batches)["n"].to_pylist())
    return found


def test_new_rows_are_uploaded_after_the_interval(
    storage: Storage, files: RankFiles, time: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(files, 1, 2)
    time.advance(29)
    assert sent(storage) == []
    time.advance(1)
    assert sent(storage) == [[1, 2]]
    write(files, 3)
    time.advance(29)
    write(files, 4)
    assert sent(storage) == [[1, 2]]
    path = f"{FOLDER}/rows-00000.arrow"
    before = read_stream(storage.read(path), path)
    time.advance(1)
    assert sent(storage) == [[1, 2, 3, 4]]
    added = storage.read(path, before.end)
    [batch] = read_stream(added, path, before.schema, before.end).batches
    assert batch["n"].to_pylist() == [3, 4], "it grows"
    monkeypatch.setattr(Storage, "write", None)
    time.advance(300)
    files.close()
    assert sent(storage) == [[1, 2, 3, 4]], "nothing new, nothing sent"


def test_sync_uploads_everything(storage: Storage, files: RankFiles, time: ManualClock) -> None:
    write(files, 1, 2.5)
    assert sent(storage) == [], "a new file begins, and the one before it is not waited for"
    files.sync()
    assert sent(storage) == [[1], [2.5]]
    time.advance(30)
    write(files, 3)
    files.close()
    assert sent(storage) == [[1], [2.5, 3]]


def refusing(monkeypatch: pytest.MonkeyPatch, times: int) -> Callable[[], int]:
    """A store that fails the next calls; gives how many more it will fail."""
    write = Storage.write
    left = [times]

    def failing(self: Storage, name: str, data: bytes) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise StorageError("storage memory://x does not answer")
        write(self, name, data)

    monkeypatch.setattr(Storage, "write", failing)
    return lambda: left[0]


def test_failed_upload_is_retried(
    storage: Storage,
    files: RankFiles,
    time: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = refusing(monkeypatch, 2)
    write(files, 1)
    time.advance(30)
    write(files, 2)
    time.advance(30)
    assert (sent(storage), left()) == ([], 0)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"Cannot upload rows of {FOLDER}; will try again: storage memory://x does not answer"
    ]
    write(files, 3)
    time.advance(30)
    assert sent(storage) == [[1, 2, 3]]


def test_only_sync_waits_for_a_slow_upload(
    storage: Storage, files: RankFiles, time: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Storage.write
    begun = threading.Event()
    may_end = threading.Event()

    def slow(self: Storage, name: str, data: bytes) -> None:
        begun.set()
        may_end.wait()
        send(self, name, data)

    monkeypatch.setattr(Storage, "write", slow)
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
    assert sent(storage) == [[1, 2], [3.5, 4.0]]


@pytest.fixture(params=["a folder", "an object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, storage: Storage) -> Storage:
    return Storage(tmp_path) if request.param == "a folder" else storage


def test_long_parts_become_segments(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows are worth a segment at first, and later a quarter of those that are in one."""
    monkeypatch.setattr(part_rewriter, "MIN_SEGMENT_ROWS", 10)
    monkeypatch.setattr(parts, "PART_ROWS", 10)
    monkeypatch.setattr(part_rewriter, "Thread", Immediately)
    files = RankFiles(place, FOLDER, {"rank": 0, "attempt": 0}, upload_interval_s=30)
    names = []
    for number in range(70):
        write(files, number if number < 3 else number + 0.5)
        if place.local is None:
            files._rewriter.rewrite_due()
        names.append([name for name in place.names(FOLDER) if name.endswith("t")])
        if place.local:
            assert sorted(open_recorded(place, "rows").read()["n"].to_pylist()) == [
                *range(min(number + 1, 3)),
                *(n + 0.5 for n in range(3, number + 1)),
            ]
    assert [
        number + 1 for number in range(1, 70) if len(names[number]) > len(names[number - 1])
    ] == [
        10,
        20,
        30,
        40,
        50,
        62,
    ]
    write(files, 70.5)
    files.close()
    assert open_recorded(place, "rows").read()["n"].to_pylist() == [
        0,
        1,
        2,
        *(n + 0.5 for n in range(3, 71)),
    ]
    assert {name.partition(".")[2] for name in place.names(FOLDER)} == {"parquet", "arrow"}


class Immediately(threading.Thread):
    """A thread whose work is done as it starts."""

    def start(self) -> None:
        self.run()

    def is_alive(self) -> bool:
        return False


def test_failed_segment_keeps_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(part_rewriter, "MIN_SEGMENT_ROWS", 3)
    monkeypatch.setattr(part_rewriter, "Thread", Immediately)
    place = Storage(tmp_path)
    files = RankFiles(place, FOLDER, {"rank": 0, "attempt": 0}, upload_interval_s=30)
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "create", Mock(side_effect=StorageError("the disk is full")))
        write(files, *range(5))
        assert open_recorded(place, "rows").read()["n"].to_pylist() == [*range(5)]
    assert len(caplog.records) == 1, "it waits until there are twice as many"
    write(files, 5)
    assert place.names(FOLDER) == ["rows-00001.parquet"]
    assert open_recorded(place, "rows").read()["n"].to_pylist() == [*range(6)]


@pytest.mark.parametrize("failing", ["rows", "costs"])
def test_failure_to_end_a_file_closes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    files = RankFiles(Storage(tmp_path), FOLDER, {"rank": 0, "attempt": 0}, upload_interval_s=30)
    for table in ("rows", "costs"):
        files.write(table, {"n": pa.array([1.0])}, 1)
    current: dict[str, Any] = {}
    for name, table in files._tables.items():
        [(_, current[name])] = table.parts
    monkeypatch.setattr(current[failing], "end", Mock(side_effect=OSError("the disk is full")))
    with pytest.raises(StorageError, match="the disk is full"):
        files.close()
    assert [part._file.closed for name, part in current.items() if name != failing] == [True]
    current[failing]._file.close()


def test_rows_after_a_failure_to_end_a_part_go_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full for as long as the first part is ended, which closes its file."""
    monkeypatch.setattr(part_rewriter, "MIN_SEGMENT_ROWS", 3)
    monkeypatch.setattr(part_rewriter, "Thread", Immediately)
    place = Storage(tmp_path)
    files = RankFiles(place, FOLDER, {"rank": 0, "attempt": 0}, upload_interval_s=30)
    write(files, 0, 1)
    [(_, part)] = files._tables["rows"].parts
    end = part.end

    def end_on_full_disk() -> None:
        end()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(part, "end", Mock(side_effect=end_on_full_disk))
    write(files, 2, 3, 4)
    assert "No space left on device" in caplog.text
    files.close()
    assert open_recorded(place, "rows").read()["n"].to_pylist() == [*range(5)]

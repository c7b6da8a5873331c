"""Verification of checkpoint files: which rank reads them, and when; and damaged checkpoints, which
are skipped."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hooks.position import Position
from orchestrator.disk.checkpoints.reader import LatestCheckpoint
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import CheckpointError
from orchestrator.storage import Storage
from tests.orchestrator.disk.checkpoints.saved import DETAILS, save, weights


def test_checkpoint_with_a_missing_file_is_not_committed(store: CheckpointStore) -> None:
    entries = store.write_files("epoch-0001", {"model.pt": weights(1.0)})
    entries["rank-0001.pt"] = {"sha256": "0" * 64, "bytes": 3}
    with pytest.raises(CheckpointError, match=r"rank-0001\.pt is missing"):
        store.commit("epoch-0001", entries, Position(), {**DETAILS, "world_size": 2})
    assert store.list_names() == []


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE = {
    "a flipped bit": flip,
    "cut in half": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "longer": lambda data: data + b"\x00",
}


@pytest.mark.parametrize("file", ["model.pt", "rank-0000.pt"])
@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_checkpoint_is_skipped(store: CheckpointStore, how: str, file: str) -> None:
    save(store, "epoch-0001", 10)
    save(store, "epoch-0002", 20)
    path = f"epoch-0002/{file}"
    store.storage.write(path, DAMAGE[how](store.storage.read(path)))
    assert store.find_latest().name == "epoch-0001"


def test_rank_verifies_its_own_files(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_chunks = Storage.read_chunks
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "read_chunks", lambda *arguments: map(flip, read_chunks(*arguments)))
        with pytest.raises(
            CheckpointError, match=r"model\.pt is damaged: its sha256 differs.* It was just written"
        ):
            store.write_files("epoch-0001", {"model.pt": weights(1.0)})
    entries = store.write_files("epoch-0001", {"model.pt": weights(1.0)})
    monkeypatch.setattr(Storage, "read_chunks", None)
    store.commit("epoch-0001", entries, Position(), DETAILS)
    assert store.list_names() == ["epoch-0001"], "the commit reads no file again"


def test_verified_uploads_are_not_read_back(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "verifies_uploads", property(lambda self: True))
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "read_chunks", None)
        save(store, "epoch-0001", 10)
        cut = store.write_files("epoch-0002", {"model.pt": weights(1.0)})
    store.storage.write(f"{store.get_staging_folder('epoch-0002')}/model.pt", b"cut")
    with pytest.raises(
        CheckpointError, match=r"model\.pt is damaged: it has 3 bytes, and [\d,]+ were written"
    ):
        store.commit("epoch-0002", cut, Position(step=20), DETAILS)


class ThreadGroup:
    """A group of ranks that are threads of this process."""

    def __init__(self, rank: int, barrier: threading.Barrier, values: dict[int, Any]) -> None:
        self.rank = rank
        self.world_size = barrier.parties
        self._barrier = barrier
        self._values = values

    def gather(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait(20)
        values = [self._values[rank] for rank in range(self.world_size)]
        self._barrier.wait(20)
        return values

    def broadcast(self, make: Any) -> Any:
        return self.gather(make() if self.rank == 0 else None)[0]


def test_resuming_ranks_read_each_file_once_and_agree(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        entries = store.write_files(f"epoch-{number}", {"model.pt": weights(1.0)})
        for rank in range(3):
            entries |= store.write_files(f"epoch-{number}", {f"rank-{rank:04d}.pt": rank})
        store.commit(
            f"epoch-{number}", entries, Position(step=number), {**DETAILS, "world_size": 3}
        )
    store.storage.write("epoch-2/rank-0001.pt", flip(store.storage.read("epoch-2/rank-0001.pt")))
    read: list[tuple[str, str]] = []
    read_chunks = Storage.read_chunks

    def noting_chunks(self: Storage, name: str) -> Iterator[bytes]:
        read.append((threading.current_thread().name, name))
        return read_chunks(self, name)

    monkeypatch.setattr(Storage, "read_chunks", noting_chunks)
    monkeypatch.setattr(
        Storage, "map", lambda self, call, things: [call(thing) for thing in things]
    )
    barrier = threading.Barrier(3)
    values: dict[int, Any] = {}
    newest: dict[int, LatestCheckpoint] = {}

    def resume(rank: int) -> None:
        newest[rank] = store.find_latest(ThreadGroup(rank, barrier, values))

    threads = [threading.Thread(target=resume, args=(rank,), name=str(rank)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {latest.name for latest in newest.values()} == {"epoch-1"}
    for latest in newest.values():
        [reason] = latest.skip_reasons
        assert reason.partition("epoch-2: ")[2] == (
            "rank-0001.pt is damaged: its sha256 differs from the manifest's"
        )
    assert {name.partition("/")[2]: rank for rank, name in read} == {
        "model.pt": "0",
        **{f"rank-000{rank}.pt": str(rank) for rank in range(3)},
    }
    assert len(read) == 8, "each file once"

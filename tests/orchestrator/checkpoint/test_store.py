from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from orchestrator.checkpoint.position import Position, Stage
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.errors import CheckpointError
from orchestrator.storage import Storage


@pytest.fixture(params=["folder", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """A folder, and a location that is none: fsspec's files in memory."""
    if request.param == "folder":
        yield Storage(tmp_path / "checkpoints")
        return
    name = f"test-{uuid.uuid4().hex}"
    yield Storage(f"memory://{name}")
    memory = fsspec.filesystem("memory")
    if memory.exists(f"/{name}"):
        memory.rm(f"/{name}", recursive=True)


@pytest.fixture
def store(storage: Storage) -> CheckpointStore:
    return CheckpointStore(storage, "digits")


def weights(value: float) -> dict[str, Any]:
    return {"weight": torch.full((20, 5), value)}


def save(store: CheckpointStore, name: str, step: int, value: float = 0.0, stage: Stage = Stage.TRAINED) -> str:
    """Saves as the loop does, and returns the name it got."""
    name = store.free_name(name)
    store.discard_unfinished(name)
    entries = store.write_files(name, {"model.pt": weights(value), "hooks.pt": {"ema": {"updates": step}}})
    entries |= store.write_files(name, {"rank-0000.pt": {"random": torch.arange(3)}})
    store.commit(name, entries, Position(step=step, stage=stage), {"world_size": 1, "metrics": {}})
    return name


class Breaks:
    """Cannot be written: what a kill in the middle of a file looks like."""

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


def test_what_is_saved_is_loaded(store: CheckpointStore) -> None:
    position = Position(epoch=2, step=30, iteration=60, samples=480, offset=7, phase_iteration=3, eval_iterations={"val": 4}, stage=Stage.TRAIN)
    entries = store.write_files("step-00000030", {"model.pt": weights(1.5)})
    store.commit("step-00000030", entries, position, {"world_size": 2, "metrics": {"val/accuracy": 0.1 + 0.2}})
    assert torch.equal(store.load("step-00000030", "model.pt")["weight"], weights(1.5)["weight"])
    assert store.position("step-00000030") == position
    assert store.manifest("step-00000030")["world_size"] == 2
    assert store.manifest("step-00000030")["metrics"] == {"val/accuracy": 0.1 + 0.2}
    assert store.files("step-00000030") == ["model.pt"]
    assert store.path("step-00000030") == f"{store.storage}/step-00000030"


def test_the_samples_of_all_ranks_are_known_of_older_checkpoints_too(store: CheckpointStore) -> None:
    store.commit("epoch-0001", store.write_files("epoch-0001", {"model.pt": weights(1.0)}), Position(samples=480), {"world_size": 2, "metrics": {}})
    manifest = store.manifest("epoch-0001")
    del manifest["position"]["world_samples"]
    manifest["position"]["eval_iterations"] = 3
    store.storage.write("epoch-0001/manifest.json", json.dumps(manifest).encode())
    assert store.position("epoch-0001").world_samples == 960
    assert store.position("epoch-0001").eval_iterations == {"val": 3}


def test_names_are_in_the_order_of_training(store: CheckpointStore) -> None:
    save(store, "b", 20)
    save(store, "a", 100)
    save(store, "step-00000100", 100, stage=Stage.VALIDATED)
    save(store, "c", 3)
    save(store, "d", 100, stage=Stage.TRAIN)
    assert store.names() == ["c", "b", "d", "a", "step-00000100"]
    assert store.latest() == "step-00000100"


def test_the_last_is_the_newest_whose_files_are_there(store: CheckpointStore, caplog: pytest.LogCaptureFixture) -> None:
    for step, name in enumerate("abc"):
        save(store, name, step)
    store.storage.delete("b/model.pt")
    store.storage.write("c/manifest.json", "{")
    assert store.resolve("last") == "a"
    assert "left out: checkpoint" in caplog.text
    assert "the manifest of 'c'" in caplog.text


def test_an_empty_place_has_no_checkpoint(store: CheckpointStore) -> None:
    assert store.names() == []
    assert store.latest() is None
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        store.resolve("last")
    with pytest.raises(CheckpointError, match=r"no checkpoint 'epoch-0001' in .*; there are: none"):
        store.manifest("epoch-0001")


# Interrupted saves


@pytest.mark.parametrize("again", [False, True], ids=["another name", "the same name"])
def test_a_save_cut_off_in_a_file_leaves_the_old_checkpoint_alone(store: CheckpointStore, again: bool) -> None:
    save(store, "epoch-0001", 10, 1.0)
    name = store.free_name("epoch-0001" if again else "epoch-0002")
    store.discard_unfinished(name)
    with pytest.raises(KeyboardInterrupt):
        store.write_files(name, {"model.pt": weights(2.0), "hooks.pt": {"bad": Breaks()}})
    assert store.names() == ["epoch-0001"]
    assert store.latest() == "epoch-0001"
    assert torch.equal(store.load("epoch-0001", "model.pt")["weight"], weights(1.0)["weight"])


@pytest.mark.parametrize("again", [False, True], ids=["another name", "the same name"])
def test_a_save_cut_off_before_it_is_committed_leaves_the_old_checkpoint_alone(store: CheckpointStore, again: bool) -> None:
    save(store, "epoch-0001", 10, 1.0)
    name = store.free_name("epoch-0001" if again else "epoch-0002")
    store.discard_unfinished(name)
    store.write_files(name, {"model.pt": weights(2.0)})
    assert store.names() == ["epoch-0001"]
    assert store.latest() == "epoch-0001"
    assert torch.equal(store.load("epoch-0001", "model.pt")["weight"], weights(1.0)["weight"])


def test_what_was_cut_off_is_not_part_of_the_next_save(store: CheckpointStore) -> None:
    store.write_files("epoch-0001", {"model.pt": weights(1.0), "rank-0007.pt": {}})
    save(store, "epoch-0001", 10, 2.0)
    assert store.files("epoch-0001") == ["hooks.pt", "model.pt", "rank-0000.pt"]
    assert sorted(store.storage.names("epoch-0001")) == ["hooks.pt", "manifest.json", "model.pt", "rank-0000.pt"]
    assert torch.equal(store.load("epoch-0001", "model.pt")["weight"], weights(2.0)["weight"])


def test_a_later_save_of_the_same_name_is_the_one_that_counts(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 10, 1.0)
    name = save(store, "epoch-0001", 10, 2.0)
    assert store.latest() == name
    assert torch.equal(store.load(name, "model.pt")["weight"], weights(2.0)["weight"])


def test_in_a_folder_the_later_save_takes_the_name(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    save(store, "epoch-0001", 10, 1.0)
    save(store, "epoch-0001", 10, 2.0)
    assert os.listdir(tmp_path) == ["epoch-0001"]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_while_a_checkpoint_is_replaced_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """Replacing is two renames and a removal; the kill comes after some of them."""
    store = CheckpointStore(Storage(tmp_path))
    save(store, "epoch-0001", 10, 1.0)
    done: list[str] = []
    rename, delete = Storage.rename, Storage.delete

    def renaming(self: Storage, name: str, to: str) -> None:
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(name)
        rename(self, name, to)

    def deleting(self: Storage, name: str) -> None:
        if name.endswith(".old"):
            raise KeyboardInterrupt
        delete(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "rename", renaming)
        patch.setattr(Storage, "delete", deleting)
        with pytest.raises(KeyboardInterrupt):
            save(store, "epoch-0001", 10, 2.0)

    later = CheckpointStore(Storage(tmp_path))
    later.recover()
    assert later.latest() == "epoch-0001"
    expected = weights(2.0 if renames == 2 else 1.0)["weight"]
    assert torch.equal(later.load("epoch-0001", "model.pt")["weight"], expected)
    assert not list(tmp_path.glob(".*.old"))


def test_a_file_that_does_not_arrive_whole_is_not_committed(store: CheckpointStore) -> None:
    entries = store.write_files("epoch-0001", {"model.pt": weights(1.0)})
    entries["rank-0001.pt"] = {"sha256": "0" * 64, "bytes": 3}
    with pytest.raises(CheckpointError, match=r"rank-0001\.pt is missing"):
        store.commit("epoch-0001", entries, Position(), {"world_size": 2, "metrics": {}})
    assert store.names() == []


# Damage


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
def test_a_damaged_checkpoint_is_passed_over(store: CheckpointStore, how: str, file: str) -> None:
    save(store, "epoch-0001", 10)
    save(store, "epoch-0002", 20)
    path = f"epoch-0002/{file}"
    store.storage.write(path, DAMAGE[how](store.storage.read(path)))
    assert store.latest() == "epoch-0001"


def test_a_missing_file_is_damage_too(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 10)
    save(store, "epoch-0002", 20)
    store.storage.delete("epoch-0002/hooks.pt")
    assert store.latest() == "epoch-0001"


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "posi', b"\xff\xfe", b"[]", b"{}", b'{"position": {"stage": "train", "else": 1}}'])
def test_a_damaged_manifest_is_no_checkpoint(store: CheckpointStore, content: bytes) -> None:
    save(store, "epoch-0001", 10)
    save(store, "epoch-0002", 20)
    store.storage.write("epoch-0002/manifest.json", content)
    assert store.latest() == "epoch-0001"
    assert store.names() == ["epoch-0001"]
    with pytest.raises(CheckpointError, match=r"manifest of 'epoch-0002' .* is damaged"):
        store.manifest("epoch-0002")


def test_what_is_passed_over_is_said(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 10)
    save(store, "epoch-0002", 20)
    save(store, "epoch-0003", 30)
    store.storage.write("epoch-0002/model.pt", b"")
    store.storage.write("epoch-0003/manifest.json", b"5")
    reasons: list[str] = []
    assert store.latest(reasons.append) == "epoch-0001"
    assert reasons[0] == f"the manifest of 'epoch-0003' in {store.storage} is damaged: it is not a mapping"
    assert reasons[1].startswith(f"checkpoint {store.storage}/epoch-0002: model.pt is damaged (0 bytes, ")


def test_where_none_is_whole_nothing_begins_anew(store: CheckpointStore) -> None:
    assert store.latest() is None
    save(store, "epoch-0001", 10)
    store.storage.write("epoch-0001/model.pt", b"")
    with pytest.raises(CheckpointError, match=r"none of the checkpoints in .* is whole:\ncheckpoint .*epoch-0001: model.pt is damaged"):
        store.latest()


def test_a_folder_whose_manifest_is_gone_is_damaged(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    save(store, "epoch-0001", 10)
    store.storage.delete("epoch-0001/manifest.json")
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        store.latest()


def test_a_checkpoint_of_a_later_version_is_refused_and_not_passed_over(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 10)
    save(store, "epoch-0002", 20)
    manifest = store.manifest("epoch-0002")
    store.storage.write("epoch-0002/manifest.json", json.dumps({**manifest, "format": 2}))
    for read in (store.latest, lambda: store.manifest("epoch-0002")):
        with pytest.raises(CheckpointError, match="checkpoint 'epoch-0002' has format 2, of a later version"):
            read()


def test_a_manifest_without_files_is_damaged(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 10)
    store.storage.write("epoch-0001/manifest.json", json.dumps({**store.manifest("epoch-0001"), "files": {}}))
    with pytest.raises(CheckpointError, match="is damaged: it names no files"):
        store.manifest("epoch-0001")


def test_a_checkpoint_that_cannot_be_loaded_says_which_file(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 10)
    store.storage.write("epoch-0001/model.pt", b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"epoch-0001/model\.pt cannot be loaded"):
        store.load("epoch-0001", "model.pt")
    with pytest.raises(CheckpointError, match=r"epoch-0001/other\.pt cannot be loaded"):
        store.load("epoch-0001", "other.pt")


class Code:
    """Unpickled, this would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_with_code_in_it_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    entries = store.write_files("epoch-0001", {"model.pt": {"weight": Code(tmp_path / "ran")}})
    store.commit("epoch-0001", entries, Position(), {"world_size": 1, "metrics": {}})
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        store.load("epoch-0001", "model.pt")
    assert not (tmp_path / "ran").exists()


# What is kept


def test_only_what_its_owner_gave_up_and_nobody_wants_is_deleted(store: CheckpointStore) -> None:
    for step in (1, 2, 3, 4):
        save(store, f"epoch-000{step}", step)
    store.retain("run", ["epoch-0001"])
    store.retain("checkpoint", ["epoch-0001", "epoch-0002", "epoch-0003"])
    store.retain("run", ["epoch-0003"])
    assert store.names() == ["epoch-0001", "epoch-0002", "epoch-0003", "epoch-0004"]  # 1 is still wanted
    store.retain("checkpoint", ["epoch-0002"])
    # 1 is given up by both; 3 by one; 4 was never anybody's
    assert store.names() == ["epoch-0002", "epoch-0003", "epoch-0004"]
    store.retain("run", [])
    assert store.names() == ["epoch-0002", "epoch-0004"]


def test_what_the_store_did_not_write_is_never_touched(store: CheckpointStore) -> None:
    store.storage.write("notes/readme.txt", "mine")
    store.storage.write("epoch-0009/picture.png", "mine")
    store.storage.write(".notes.old/readme.txt", "mine")
    for step in (1, 2):
        save(store, f"epoch-000{step}", step)
        store.retain("run", [f"epoch-000{step}"])
    store.recover()
    assert store.names() == ["epoch-0002"]
    assert store.storage.read("notes/readme.txt") == b"mine"
    assert store.storage.read("epoch-0009/picture.png") == b"mine"
    assert store.storage.read(".notes.old/readme.txt") == b"mine"


def test_a_later_process_knows_what_was_wanted(store: CheckpointStore, storage: Storage) -> None:
    save(store, "epoch-0001", 1)
    store.retain("checkpoint", ["epoch-0001"])
    save(store, "epoch-0002", 2)
    CheckpointStore(storage).retain("checkpoint", ["epoch-0002"])
    assert store.names() == ["epoch-0002"]


def test_other_ranks_have_no_say(storage: Storage, store: CheckpointStore) -> None:
    save(store, "epoch-0001", 1)
    store.retain("run", ["epoch-0001"])
    other = CheckpointStore(storage, master=False)
    other.retain("run", [])
    other.mark("epoch-0001", "best")
    other.discard_unfinished("epoch-0001")
    assert other.publish("epoch-0001", {"model": "model"}, "published") == ""
    assert store.names() == ["epoch-0001"]
    assert store.index()["labels"] == {}
    assert not storage.exists("published")


# Labels


def test_labels_point_at_checkpoints_until_these_are_gone(store: CheckpointStore) -> None:
    for step in (1, 2):
        save(store, f"epoch-000{step}", step)
    store.mark("epoch-0002", "best")
    store.mark("epoch-0001", "best")
    store.retain("checkpoint", ["epoch-0001", "epoch-0002"])
    assert store.resolve("best") == "epoch-0001"
    assert store.resolve("last") == "epoch-0002"
    assert store.resolve("epoch-0002") == "epoch-0002"
    store.retain("checkpoint", ["epoch-0002"])
    with pytest.raises(CheckpointError, match=r"no checkpoint 'best' in .*; there are: last, epoch-0002"):
        store.resolve("best")


def test_what_was_judged_is_not_guessed_of_a_checkpoint_that_does_not_say_it(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 1, 3.0)
    assert torch.equal(store.weights("last")["weight"], weights(3.0)["weight"])
    entries = store.write_files("epoch-0002", {"model.pt": weights(4.0), "ema.pt": {"model": weights(5.0)}})
    store.commit("epoch-0002", entries, Position(step=2), {"world_size": 1, "metrics": {}})
    with pytest.raises(CheckpointError, match=r"earlier version, which did not keep whether validation ran with model.pt or ema.pt"):
        store.weights("last")


# Publishing


def test_chosen_parts_are_published_in_a_file_named_by_its_hash(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 1, 3.0)
    path = store.publish("epoch-0001", {"model": "model"}, "published")
    (file,) = store.storage.names("published")
    assert path == f"{store.storage}/published/{file}"
    data = store.storage.read(f"published/{file}")
    assert file == f"digits-epoch-0001-{hashlib.sha256(data).hexdigest()[:8]}.pt"
    content = torch.load(BytesIO(data), weights_only=True)
    assert list(content) == ["model"]
    assert torch.equal(content["model"]["weight"], weights(3.0)["weight"])
    assert store.names() == ["epoch-0001"]


def test_parts_that_are_not_there_are_refused_with_those_that_are(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 1)
    with pytest.raises(CheckpointError, match="there is no rank-0000 in 'epoch-0001'; it holds hooks, model"):
        store.publish("epoch-0001", {"model": "model", "mine": "rank-0000"}, "published")


# Who looks at which bytes

OPERATIONS = ("create", "rename", "delete", "state", "tree", "names", "pieces", "read")


def ended_at(monkeypatch: pytest.MonkeyPatch, last: int) -> list[str]:
    """From now on every operation of a storage is noted, and a kill comes at the one of a number."""
    done: list[str] = []

    def killing(name: str) -> Any:
        operation = getattr(Storage, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if len(done) == last:
                raise KeyboardInterrupt
            done.append(f"{name} {arguments[1] if len(arguments) > 1 else ''}")
            return operation(*arguments, **options)

        return call

    for name in OPERATIONS:
        monkeypatch.setattr(Storage, name, killing(name))
    return done


def test_a_kill_at_any_operation_leaves_a_whole_checkpoint(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each save keeps itself alone, so that the one before goes; the next life goes on after each kill, at one operation later."""
    store, last, newest, tried = CheckpointStore(storage), 0, 0.0, 0
    save(store, "step-0", 0, 0.0)
    store.retain("run", ["step-0"])
    while True:
        with monkeypatch.context() as patch:
            done = ended_at(patch, last)
            try:
                name = save(store, f"step-{tried + 1}", tried + 1, float(tried + 1))
                store.retain("run", [name])
            except KeyboardInterrupt:
                pass
            else:
                break
        tried, last = tried + 1, last + 1
        store = CheckpointStore(storage)
        store.recover()
        found = store.latest()
        assert found is not None, done
        value = float(store.load(found, "model.pt")["weight"][0, 0])
        assert value in (newest, float(tried)), done
        newest = value
    assert tried > 12
    assert CheckpointStore(storage).latest() == name


def test_what_a_rank_wrote_it_verifies_itself(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = Storage.pieces
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "pieces", lambda *of: map(flip, pieces(*of)))
        with pytest.raises(CheckpointError, match=r"model\.pt is damaged .* only just written there"):
            store.write_files("epoch-0001", {"model.pt": weights(1.0)})
    entries = store.write_files("epoch-0001", {"model.pt": weights(1.0)})
    monkeypatch.setattr(Storage, "pieces", None)
    store.commit("epoch-0001", entries, Position(), {"world_size": 1, "metrics": {}})
    assert store.names() == ["epoch-0001"], "whoever puts it into its place reads none of it again"


def test_on_a_store_that_verifies_what_it_is_sent_nothing_is_read_back(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "verifies_uploads", property(lambda self: True))
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "pieces", None)
        save(store, "epoch-0001", 10)
        cut = store.write_files("epoch-0002", {"model.pt": weights(1.0)})
    store.storage.write(f"{store.staging('epoch-0002')}/model.pt", b"cut")
    with pytest.raises(CheckpointError, match=r"model\.pt is damaged \(3 bytes"):
        store.commit("epoch-0002", cut, Position(step=20), {"world_size": 1, "metrics": {}})
    tree = Storage.tree
    monkeypatch.setattr(Storage, "tree", lambda *of: {name: state for name, state in tree(*of).items() if name != "model.pt"})
    save(store, "epoch-0003", 30)
    assert store.latest() == "epoch-0003", "what is listed late is asked for by itself"


class Together:
    """Ranks as threads, which tell each other what they found."""

    def __init__(self, rank: int, barrier: threading.Barrier, told: dict[int, Any]) -> None:
        self.rank, self.world_size, self._barrier, self._told = rank, barrier.parties, barrier, told

    def gather(self, value: Any) -> list[Any]:
        self._told[self.rank] = value
        self._barrier.wait(20)
        values = [self._told[rank] for rank in range(self.world_size)]
        self._barrier.wait(20)
        return values

    def broadcast(self, make: Any) -> Any:
        return self.gather(make() if self.rank == 0 else None)[0]


def test_ranks_that_resume_read_their_own_files_and_agree(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        entries = store.write_files(f"epoch-{number}", {"model.pt": weights(1.0)})
        for rank in range(3):
            entries |= store.write_files(f"epoch-{number}", {f"rank-{rank:04d}.pt": rank})
        store.commit(f"epoch-{number}", entries, Position(step=number), {"world_size": 3, "metrics": {}})
    store.storage.write("epoch-2/rank-0001.pt", flip(store.storage.read("epoch-2/rank-0001.pt")))
    read: list[tuple[str, str]] = []
    pieces = Storage.pieces
    monkeypatch.setattr(Storage, "pieces", lambda self, name: [*pieces(self, name), read.append((threading.current_thread().name, name))][:-1])
    monkeypatch.setattr(Storage, "each", lambda self, call, things: [call(thing) for thing in things])
    barrier, told, found, said = threading.Barrier(3), {}, {}, []

    def resume(rank: int) -> None:
        found[rank] = store.latest(said.append if rank == 0 else lambda reason: None, Together(rank, barrier, told))

    threads = [threading.Thread(target=resume, args=(rank,), name=str(rank)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(3), "epoch-1")
    assert [reason.partition("epoch-2: ")[2][:24] for reason in said] == ["rank-0001.pt is damaged "]
    assert {name.partition("/")[2]: rank for rank, name in read} == {"model.pt": "0", **{f"rank-000{rank}.pt": str(rank) for rank in range(3)}}
    assert len(read) == 8, "each file once"

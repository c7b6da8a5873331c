import hashlib
import os
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from hooks.position import Position, Stage
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import CheckpointError, StorageError
from orchestrator.storage import Storage
from tests.orchestrator.disk.checkpoints.saved import DETAILS, kill_at, save, weights


def test_saved_checkpoint_is_loaded_unchanged(store: CheckpointStore) -> None:
    counts: Any = {
        "epoch": 2,
        "step": 30,
        "iteration": 60,
        "samples": 480,
        "offset": 7,
        "phase_iteration": 3,
    }
    position = Position(**counts, eval_iterations={"val": 4}, stage=Stage.TRAIN)
    entries = store.write_files("step-00000030", {"model.pt": weights(1.5)})
    store.commit(
        "step-00000030",
        entries,
        position,
        {**DETAILS, "world_size": 2, "metrics": {"val/accuracy": 0.1 + 0.2}},
    )
    assert torch.equal(store.load("step-00000030", "model.pt")["weight"], weights(1.5)["weight"])
    assert store.read_position("step-00000030") == position
    assert store.read_manifest("step-00000030")["world_size"] == 2
    assert store.read_manifest("step-00000030")["metrics"] == {"val/accuracy": 0.1 + 0.2}
    assert [*store.read_manifest("step-00000030")["files"]] == ["model.pt"]
    assert store.get_path("step-00000030") == f"{store.storage}/step-00000030"


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_are_loaded_unchanged(store: CheckpointStore, layout: torch.layout) -> None:
    entries = store.write_files(
        "a", {"model.pt": {"weight": torch.eye(3).to_sparse(layout=layout)}}
    )
    store.commit("a", entries, Position(), DETAILS)
    loaded = store.load("a", "model.pt")["weight"]
    assert loaded.layout == layout
    assert torch.equal(loaded.to_dense(), torch.eye(3))


def test_checkpoint_is_committed_once_none_of_its_name_is_being_written(
    store: CheckpointStore,
) -> None:
    for step in (1, 2):
        name = store.choose_name("a")
        entries = store.write_files(name, {"model.pt": weights(step)})
        assert not store.is_committed(name)
        store.commit(name, entries, Position(step=step), DETAILS)
        assert store.is_committed(name)


def test_names_are_sorted_by_training_progress(store: CheckpointStore) -> None:
    save(store, "b", 20)
    save(store, "a", 100)
    save(store, "step-00000100", 100, stage=Stage.VALIDATED)
    save(store, "c", 3)
    save(store, "d", 100, stage=Stage.TRAIN)
    save(store, "after an epoch of skipped steps", 100, skipped=7)
    assert store.list_names() == [
        "c",
        "b",
        "d",
        "a",
        "step-00000100",
        "after an epoch of skipped steps",
    ]
    assert store.find_latest().name == "after an epoch of skipped steps"


def test_last_is_the_newest_with_all_files(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    for step, name in enumerate("abc"):
        save(store, name, step)
    store.storage.delete("b/model.pt")
    store.storage.write("c/manifest.json", "{")
    assert store.resolve("last") == "a"
    assert "skipped: checkpoint" in caplog.text
    assert "c/manifest.json is damaged" in caplog.text


def test_empty_storage_has_no_checkpoint(store: CheckpointStore) -> None:
    assert store.list_names() == []
    assert store.find_latest().name is None
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        store.resolve("last")
    with pytest.raises(CheckpointError, match=r"no checkpoint 'epoch-0001' in .*; available: none"):
        store.read_manifest("epoch-0001")


# Interrupted saves


def test_files_of_an_interrupted_save_are_not_in_the_next(store: CheckpointStore) -> None:
    store.write_files("epoch-0001", {"model.pt": weights(1.0), "rank-0007.pt": {}})
    save(store, "epoch-0001", 10, 2.0)
    assert [*store.read_manifest("epoch-0001")["files"]] == ["hooks.pt", "model.pt", "rank-0000.pt"]
    assert sorted(store.storage.names("epoch-0001")) == [
        "hooks.pt",
        "manifest.json",
        "model.pt",
        "rank-0000.pt",
    ]
    assert torch.equal(store.load("epoch-0001", "model.pt")["weight"], weights(2.0)["weight"])


@pytest.mark.parametrize("replaces", [False, True], ids=["another name", "the same name"])
def test_kill_at_any_operation_leaves_an_intact_checkpoint(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    """Each save retains only itself. After each kill, the next attempt is killed one operation
    later."""
    if replaces and storage.local is None:
        pytest.skip("an object store uses another name")
    store = CheckpointStore(storage)
    newest = 0.0
    tried = 0
    save(store, "step-0", 0, 0.0)
    store.retain("run", ["step-0"])
    while True:
        with monkeypatch.context() as patch:
            done = kill_at(patch, tried)
            try:
                number = 0 if replaces else tried + 1
                name = save(store, f"step-{number}", tried + 1, float(tried + 1))
                with store.index.edit():
                    store.retain("run", [name])
                    store.mark(name, "best")
            except KeyboardInterrupt:
                pass
            else:
                break
        tried += 1
        store = CheckpointStore(storage)
        store.recover()
        found = store.find_latest().name
        assert found is not None, done
        value = float(store.load(found, "model.pt")["weight"][0, 0])
        assert value in (newest, float(tried)), done
        assert {*store.index.read()["labels"].values()} <= {*store.list_names()}, done
        newest = value
    assert tried > 12
    assert CheckpointStore(storage).find_latest().name == name


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "renamed"])
def test_run_continues_from_a_checkpoint_that_was_copied_or_renamed_by_hand(
    tmp_path: Path, copied: bool
) -> None:
    store = CheckpointStore(Storage(tmp_path))
    for step in (1, 2, 3):
        save(store, f"epoch-000{step}", step)
    move = shutil.copytree if copied else shutil.move
    move(tmp_path / "epoch-0002", tmp_path / "keep")

    assert store.reset_to(store.get_path("keep")) == "keep"
    older = ["epoch-0001", "epoch-0002"] if copied else ["epoch-0001"]
    assert store.list_names() == [*older, "keep"]


def test_leftover_of_an_interrupted_deletion_does_not_block_a_name(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    save(store, "epoch-0001", 1, 1.0)
    store.storage.write(".epoch-0001.old/model.pt", "of an earlier checkpoint")
    save(store, "epoch-0001", 2, 2.0)
    assert store.read_position("epoch-0001").step == 2

    store.storage.write(".epoch-0001.old/model.pt", "of an earlier checkpoint")
    store.recover()
    assert store.storage.names() == ["epoch-0001"]


def test_damaged_copy_costs_no_checkpoint_of_its_name(store: CheckpointStore) -> None:
    source = CheckpointStore(store.storage / "source")
    save(source, "epoch-0001", 1)
    save(store, "epoch-0001", 1, 3.0)
    source.storage.write("epoch-0001/model.pt", b"damaged")
    with pytest.raises(CheckpointError, match=r"model\.pt is damaged"):
        store.reset_to(source.get_path("epoch-0001"))
    assert store.load("epoch-0001", "model.pt")["weight"][0, 0] == 3.0


def test_copy_replaces_the_checkpoints_of_a_run(store: CheckpointStore) -> None:
    source = CheckpointStore(store.storage / "source")
    save(source, "epoch-0001", 1, 2.0)
    save(store, "epoch-0001", 1, 3.0)
    name = store.reset_to(source.get_path("epoch-0001"))
    assert store.list_names() == [name]
    assert store.read_manifest(name)["name"] == name
    assert store.read_manifest(name)["copied_from"] == source.get_path("epoch-0001")
    assert store.load(name, "model.pt")["weight"][0, 0] == 2.0


# Loading


def test_load_error_names_the_file(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 10)
    store.storage.write("epoch-0001/model.pt", b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"epoch-0001/model\.pt cannot be loaded"):
        store.load("epoch-0001", "model.pt")
    with pytest.raises(CheckpointError, match=r"epoch-0001/other\.pt cannot be loaded"):
        store.load("epoch-0001", "other.pt")


GET_UNKNOWN_MEMO = b"\x80\x02h\x05."
"""A pickle that reads an object which it has not stored; torch raises a bare KeyError for it."""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (GET_UNKNOWN_MEMO, "KeyError: 5"),
        ({"weight": {"hookyard.encoded": "deque"}}, "KeyError: 'parts'"),
        (
            {"weight": {"hookyard.encoded": "defaultdict", "parts": ["Mesh", {}]}},
            "KeyError: 'Mesh'",
        ),
    ],
)
def test_file_of_another_format_is_named_with_what_to_do(
    store: CheckpointStore, content: Any, reason: str
) -> None:
    save(store, "epoch-0001", 10)
    save(store, "epoch-0002", 20)
    file = BytesIO()
    torch.save(content, file)
    data = content if isinstance(content, bytes) else file.getvalue()
    store.storage.write("epoch-0002/model.pt", data)
    with pytest.raises(CheckpointError) as caught:
        store.load("epoch-0002", "model.pt")
    message = str(caught.value)
    assert message.startswith(f"{store.get_path('epoch-0002')}/model.pt cannot be loaded; expected")
    assert f"({reason})" in message
    assert message.endswith("; other checkpoints: epoch-0001")


class Code:
    """Unpickled, this would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickled_code_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    entries = store.write_files("epoch-0001", {"model.pt": {"weight": Code(tmp_path / "ran")}})
    store.commit("epoch-0001", entries, Position(), DETAILS)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        store.load("epoch-0001", "model.pt")
    assert not (tmp_path / "ran").exists()


# Owners


def test_checkpoint_is_deleted_once_its_last_owner_releases_it(store: CheckpointStore) -> None:
    for step in (1, 2, 3, 4):
        save(store, f"epoch-000{step}", step)
    store.retain("run", ["epoch-0001"])
    store.retain("checkpoint", ["epoch-0001", "epoch-0002", "epoch-0003"])
    store.retain("run", ["epoch-0003"])
    assert store.list_names() == [
        "epoch-0001",
        "epoch-0002",
        "epoch-0003",
        "epoch-0004",
    ]  # 1 still has an owner
    store.retain("checkpoint", ["epoch-0002"])
    # Both owners released 1, and one of them 3; 4 never had an owner
    assert store.list_names() == ["epoch-0002", "epoch-0003", "epoch-0004"]
    store.retain("run", [])
    assert store.list_names() == ["epoch-0002", "epoch-0004"]


def test_foreign_files_are_never_touched(store: CheckpointStore) -> None:
    store.storage.write("notes/readme.txt", "mine")
    store.storage.write("epoch-0009/picture.png", "mine")
    store.storage.write(".notes.old/readme.txt", "mine")
    for step in (1, 2):
        save(store, f"epoch-000{step}", step)
        store.retain("run", [f"epoch-000{step}"])
    store.recover()
    assert store.list_names() == ["epoch-0002"]
    assert store.storage.read("notes/readme.txt") == b"mine"
    assert store.storage.read("epoch-0009/picture.png") == b"mine"
    assert store.storage.read(".notes.old/readme.txt") == b"mine"


def test_what_a_killed_save_has_written_is_deleted_before_the_next_attempt(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    save(store, "epoch-0001", 1)
    store.write_files("step-00000123", {"model": {}})
    store.storage.write(".notes.partial/readme.txt", b"mine")
    store.recover()
    assert sorted(store.storage.names()) == [".notes.partial", "epoch-0001"]


def test_a_deletion_that_is_cut_short_leaves_no_damaged_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        save(store, f"epoch-000{number}", number)

    store.retain("run", ["epoch-0003"])
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete", _delete_one_file)
        with pytest.raises(KeyboardInterrupt):
            store.retain("run", [])

    found = store.find_latest()
    assert (found.name, found.skip_reasons) == ("epoch-0002", [])
    store.recover()
    assert {*store.storage.names()} - {"epoch-0003"} == {"epoch-0001", "epoch-0002", "index.json"}


def test_a_checkpoint_that_cannot_be_renamed_is_deleted_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(Storage(tmp_path))
    for number in (1, 2):
        save(store, f"epoch-000{number}", number)

    def fail(storage: Storage, name: str, to: str) -> None:
        raise StorageError(f"{storage / name} cannot be renamed")

    monkeypatch.setattr(Storage, "rename", fail)
    store.retain("run", ["epoch-0001"])
    store.retain("run", ["epoch-0002"])
    assert store.list_names() == ["epoch-0002"]


def _delete_one_file(storage: Storage, name: str) -> None:
    """Stands for a kill in the middle of a deletion of a folder."""
    files = storage.names(name)
    if files:
        storage._writer.delete(storage._path(f"{name}/{files[0]}"))
        raise KeyboardInterrupt
    storage._writer.delete(storage._path(name))


def test_label_of_a_checkpoint_that_is_gone_is_an_error(store: CheckpointStore) -> None:
    for number in (1, 2):
        save(store, f"epoch-000{number}", number)
    store.mark("epoch-0001", "best")
    store.storage.delete("epoch-0001")
    with pytest.raises(CheckpointError, match=r"no checkpoint 'epoch-0001'.*epoch-0002"):
        store.resolve("best")


def test_only_the_master_changes_the_store(storage: Storage, store: CheckpointStore) -> None:
    save(store, "epoch-0001", 1)
    store.retain("run", ["epoch-0001"])
    other = CheckpointStore(storage, is_master=False)
    other.retain("run", [])
    other.mark("epoch-0001", "best")
    other.discard_unfinished("epoch-0001")
    assert other.publish("epoch-0001", {"model": "model"}, "published", {}) == ""
    assert store.list_names() == ["epoch-0001"]
    assert store.index.read()["labels"] == {}
    assert not storage.exists("published")


# Labels


def test_label_is_dropped_with_its_checkpoint(store: CheckpointStore) -> None:
    for step in (1, 2):
        save(store, f"epoch-000{step}", step)
    store.mark("epoch-0002", "best")
    store.mark("epoch-0001", "best")
    store.retain("checkpoint", ["epoch-0001", "epoch-0002"])
    assert store.resolve("best") == "epoch-0001"
    assert store.resolve("last") == "epoch-0002"
    assert store.resolve("epoch-0002") == "epoch-0002"
    store.retain("checkpoint", ["epoch-0002"])
    with pytest.raises(
        CheckpointError, match=r"no checkpoint 'best' in .*; available: last, epoch-0002"
    ):
        store.resolve("best")


def test_nearest_name_of_a_missing_checkpoint_is_suggested(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 1)
    store.mark("epoch-0001", "best")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint 'bset' in .* \(did you mean 'best'\?"
    ):
        store.resolve("bset")


# Publishing


def test_published_file_is_named_by_its_hash(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 1, 3.0)
    path = store.publish("epoch-0001", {"model": "model"}, "published", {})
    (file,) = store.storage.names("published")
    assert path == f"{store.storage}/published/{file}"
    data = store.storage.read(f"published/{file}")
    assert file == f"digits-epoch-0001-{hashlib.sha256(data).hexdigest()[:8]}.pt"
    content = torch.load(BytesIO(data), weights_only=True)
    assert list(content) == ["model"]
    assert torch.equal(content["model"]["weight"], weights(3.0)["weight"])
    assert store.list_names() == ["epoch-0001"]


def test_missing_part_error_lists_the_available_ones(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 1)
    with pytest.raises(CheckpointError, match="'epoch-0001' has no rank-0000; it has hooks, model"):
        store.publish("epoch-0001", {"model": "model", "mine": "rank-0000"}, "published", {})

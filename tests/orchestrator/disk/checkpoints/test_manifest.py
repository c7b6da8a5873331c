"""Manifest and index of checkpoints: their content, and damage."""

import hashlib
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.disk.checkpoints.contents import load_weights
from orchestrator.disk.checkpoints.index import Index
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import CheckpointError, StorageError
from orchestrator.storage import Storage
from tests.orchestrator.disk.checkpoints.saved import save


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"name": "e", "posi',
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"position": {"stage": "train", "else": 1}}',
    ],
)
def test_checkpoint_with_a_damaged_manifest_is_skipped(
    store: CheckpointStore, content: bytes
) -> None:
    save(store, "epoch-0001", 10)
    save(store, "epoch-0002", 20)
    store.storage.write("epoch-0002/manifest.json", content)
    assert store.find_latest().name == "epoch-0001"
    assert store.list_names() == ["epoch-0001"]
    with pytest.raises(CheckpointError, match=r"epoch-0002/manifest.json is damaged"):
        store.read_manifest("epoch-0002")


def test_folder_without_its_manifest_is_damaged(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    save(store, "epoch-0001", 10)
    store.storage.delete("epoch-0001/manifest.json")
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        store.find_latest()


def test_weights_without_a_manifest_survive_a_resume_from_an_older_checkpoint(
    tmp_path: Path,
) -> None:
    store = CheckpointStore(Storage(tmp_path))
    names = ["epoch-0001", "epoch-0002"]
    for step, name in enumerate(names):
        save(store, name, step)
    with store.index.edit():
        store.retain("checkpoint", names)
    store.storage.delete("epoch-0002/manifest.json")
    store.reset_to(store.get_path("epoch-0001"))
    assert {*names} <= {*store.storage.names()}


def test_manifest_without_files_is_damaged(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 10)
    store.storage.write(
        "epoch-0001/manifest.json", json.dumps({**store.read_manifest("epoch-0001"), "files": {}})
    )
    with pytest.raises(
        CheckpointError, match="is damaged: `files`: dictionary should have at least 1 item"
    ):
        store.read_manifest("epoch-0001")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda manifest: manifest.pop("evaluations"), "it has no `evaluations`"),
        (lambda manifest: manifest.pop("main_metric"), "it has no `main_metric`"),
        (
            lambda manifest: manifest.update(evaluations={"ema": "ema"}),
            "its evaluations have no entry with an empty label",
        ),
    ],
)
def test_manifest_that_does_not_say_which_weights_were_validated_is_damaged(
    store: CheckpointStore, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    save(store, "epoch-0001", 10)
    manifest = store.read_manifest("epoch-0001")
    change(manifest)
    store.storage.write("epoch-0001/manifest.json", json.dumps(manifest))
    with pytest.raises(CheckpointError, match=f"manifest.json is damaged: {reason}"):
        load_weights(store, "epoch-0001")


def test_position_without_a_counter_is_damaged(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 10)
    manifest = store.read_manifest("epoch-0001")
    store.storage.write(
        "epoch-0001/manifest.json", json.dumps({**manifest, "position": {"step": 10}})
    )
    with pytest.raises(CheckpointError, match="is damaged: its position has no `epoch`"):
        store.read_manifest("epoch-0001")


def make_tensors(largest: int) -> dict[str, torch.Tensor]:
    return {str(size): torch.arange(float(size)) for size in range(0, largest, 7)}


FILES = {
    "model.pt": make_tensors(0),
    "ema.pt": make_tensors(60),
    "optimizer.pt": make_tensors(120),
    "hooks.pt": make_tensors(180),
    "more.pt": make_tensors(240),
}


def test_entries_have_the_size_and_hash_of_each_file(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    entries = store.write_files("one", FILES)
    assert list(entries) == list(FILES)
    for file, content in FILES.items():
        written = (tmp_path / store.get_staging_folder("one") / file).read_bytes()
        assert entries[file] == {
            "sha256": hashlib.sha256(written).hexdigest(),
            "bytes": len(written),
        }
        assert [*torch.load(tmp_path / store.get_staging_folder("one") / file)] == [*content]


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_write_error_names_the_file_and_leaves_none(tmp_path: Path) -> None:
    store = CheckpointStore(Storage(tmp_path))
    with (
        limited_file_size(50_000),
        pytest.raises(
            StorageError, match=r"optimizer\.pt: File too large\. The file is larger than the limit"
        ),
    ):
        store.write_files(
            "one",
            {
                "model.pt": torch.zeros(10),
                "optimizer.pt": torch.zeros(50_000),
                "hooks.pt": torch.zeros(10),
            },
        )
    assert "optimizer.pt" not in os.listdir(tmp_path / store.get_staging_folder("one")), (
        "no incomplete file is left"
    )


@pytest.mark.parametrize("fails", [False, True])
def test_nested_edits_are_written_once(tmp_path: Path, fails: bool) -> None:
    """Also after an error; a checkpoint that loses its owners and gets one again stays."""
    storage = Storage(tmp_path)
    for name in ("one", "two", "three"):
        storage.write(f"{name}/model.pt", b"")
    index = Index(storage, is_master=True)
    with index.edit() as changed:
        changed["owners"] = {"run": ["one"], "checkpoint": ["one", "two"]}
        changed["labels"] = {"best": "one", "other": "two"}
    stored = (tmp_path / "index.json").read_bytes()
    try:
        with index.edit() as outer:
            outer["owners"] = {"run": [], "checkpoint": []}
            with index.edit() as inner:
                inner["owners"] = {"run": ["three"], "checkpoint": ["two", "three"]}
            assert (tmp_path / "index.json").read_bytes() == stored
            assert storage.names() == ["index.json", "one", "three", "two"]
            assert index.read()["owners"] == {"run": ["three"], "checkpoint": ["two", "three"]}
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert storage.names() == ["index.json", "three", "two"]
    assert json.loads((tmp_path / "index.json").read_text())["labels"] == {"other": "two"}
    assert (
        index.read()
        == Index(storage, is_master=False).read()
        == {
            "owners": {"run": ["three"], "checkpoint": ["two", "three"]},
            "labels": {"other": "two"},
        }
    )

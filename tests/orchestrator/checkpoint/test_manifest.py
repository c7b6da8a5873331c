"""What a checkpoint says of itself: of earlier and later versions, and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.checkpoint.position import Position
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.errors import CheckpointError
from orchestrator.storage import Storage
from tests.orchestrator.checkpoint.saved import save, weights


def test_the_samples_of_all_ranks_are_known_of_older_checkpoints_too(store: CheckpointStore) -> None:
    store.commit(
        "epoch-0001",
        store.write_files("epoch-0001", {"model.pt": weights(1.0)}),
        Position(samples=480),
        {"world_size": 2, "metrics": {}},
    )
    manifest = store.manifest("epoch-0001")
    del manifest["position"]["world_samples"]
    manifest["position"]["eval_iterations"] = 3
    store.storage.write("epoch-0001/manifest.json", json.dumps(manifest).encode())
    assert store.position("epoch-0001").world_samples == 960
    assert store.position("epoch-0001").eval_iterations == {"val": 3}


@pytest.mark.parametrize(
    "content", [b"", b'{"format": 1, "posi', b"\xff\xfe", b"[]", b"{}", b'{"position": {"stage": "train", "else": 1}}']
)
def test_a_damaged_manifest_is_no_checkpoint(store: CheckpointStore, content: bytes) -> None:
    save(store, "epoch-0001", 10)
    save(store, "epoch-0002", 20)
    store.storage.write("epoch-0002/manifest.json", content)
    assert store.latest() == "epoch-0001"
    assert store.names() == ["epoch-0001"]
    with pytest.raises(CheckpointError, match=r"manifest of 'epoch-0002' .* is damaged"):
        store.manifest("epoch-0002")


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

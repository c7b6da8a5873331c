"""What a checkpoint says of itself, and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.errors import CheckpointError
from orchestrator.storage import Storage
from tests.orchestrator.checkpoint.saved import save


@pytest.mark.parametrize(
    "content", [b"", b'{"name": "e", "posi', b"\xff\xfe", b"[]", b"{}", b'{"position": {"stage": "train", "else": 1}}']
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


def test_a_manifest_without_files_is_damaged(store: CheckpointStore) -> None:
    save(store, "epoch-0001", 10)
    store.storage.write("epoch-0001/manifest.json", json.dumps({**store.manifest("epoch-0001"), "files": {}}))
    with pytest.raises(CheckpointError, match="is damaged: it names no files"):
        store.manifest("epoch-0001")

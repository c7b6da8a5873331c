from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from orchestrator.checkpoint.store import CheckpointStore
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

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.storage import Storage


@pytest.fixture(params=["folder", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder, and a location that is none: fsspec's files in memory."""
    if request.param == "folder":
        yield str(tmp_path / "run")
        return
    folder = f"memory://test-{uuid.uuid4().hex}"
    yield f"{folder}/run"
    Storage(folder).delete("")


@pytest.fixture
def storage(location: str) -> Storage:
    return Storage(location)

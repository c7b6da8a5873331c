import pytest

from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.storage import Storage


@pytest.fixture
def store(storage: Storage) -> CheckpointStore:
    return CheckpointStore(storage, "digits")

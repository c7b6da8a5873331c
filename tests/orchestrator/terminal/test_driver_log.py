"""The driver's log, which an object store gets in batches."""

import uuid

from orchestrator.storage import Storage
from orchestrator.terminal.driver_log import DriverLog


def test_object_store_gets_lines_in_batches() -> None:
    storage = Storage(f"memory://log-{uuid.uuid4().hex}")
    log = DriverLog(storage)
    for number in range(21):
        log.add(f"line {number}")
    assert len(storage.read("log.txt").splitlines()) == 20
    log.flush()
    assert storage.read("log.txt").splitlines()[20].endswith(b" line 20")

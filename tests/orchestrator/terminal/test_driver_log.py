from __future__ import annotations

import re
import uuid
from pathlib import Path

from orchestrator.storage import Storage
from orchestrator.terminal.driver_log import DriverLog


def test_a_line_is_kept_with_its_time_at_once(tmp_path: Path) -> None:
    DriverLog(Storage(tmp_path)).add("line 0")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d line 0\n", (tmp_path / "log.txt").read_text())


def test_where_nothing_can_be_added_lines_are_kept_some_at_once() -> None:
    storage = Storage(f"memory://log-{uuid.uuid4().hex}")
    log = DriverLog(storage)
    for number in range(21):
        log.add(f"line {number}")
    assert len(storage.read_appended("log.txt").splitlines()) == 20
    log.close()
    assert storage.read("log.txt").splitlines()[20].endswith(b" line 20")

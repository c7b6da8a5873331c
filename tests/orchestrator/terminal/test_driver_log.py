from __future__ import annotations

import re
from pathlib import Path

from orchestrator.storage import Storage
from orchestrator.terminal.driver_log import DriverLog


def test_lines_are_kept_with_their_time_some_at_once(tmp_path: Path) -> None:
    log = DriverLog(Storage(tmp_path))
    for number in range(21):
        log.add(f"line {number}")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert len(lines) == 20
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d line 0", lines[0])
    log.flush()
    assert (tmp_path / "log.txt").read_text().splitlines()[20].endswith(" line 20")

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.records.lease import Lease
from orchestrator.records.process import Process
from orchestrator.records.run_driver import status_of
from tests.orchestrator.records.test_lease import gone, put
from tests.orchestrator.records.test_run_folder import make


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_status_is_what_is_written_while_the_driver_lives(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert status_of(folder) == "running"
    folder.update(status="finished", ended="2026-01-01T00:00:00Z")
    assert status_of(folder) == "finished"
    assert folder.metadata().ended == "2026-01-01T00:00:00Z"


def test_a_run_whose_driver_is_gone_is_lost(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.update(pid=dead_pid())
    assert status_of(folder) == "lost"
    folder.update(status="interrupted")
    assert status_of(folder) == "interrupted"


def test_nothing_is_said_of_a_driver_elsewhere_that_left_no_claim(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.update(pid=dead_pid(), host="elsewhere")
    assert status_of(folder) == "running"


def test_a_stranger_with_the_driver_s_number_is_not_the_driver(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.update(process_started="1")
    assert status_of(folder) == "lost"


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_run_that_is_about_to_be_resumed_is_running_until_that_process_ends(tmp_path: Path, status: str) -> None:
    folder = make(tmp_path)
    folder.end(status)
    with Lease(folder.storage):
        assert status_of(folder) == status, "the driver itself knows better"
    claim = put(folder.storage, replace(Process.this(), pid=os.getppid(), process_started=None))
    assert status_of(folder) == "running"
    claim.unlink()
    put(folder.storage, gone())
    assert status_of(folder) == status

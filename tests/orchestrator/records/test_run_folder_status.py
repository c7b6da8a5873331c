from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.records.lease import Lease
from orchestrator.records.process import Process
from tests.orchestrator.records.test_lease import gone, put
from tests.orchestrator.records.test_run_folder import make


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_status_is_recorded_one_while_driver_lives(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert folder.find_status() == "running"
    folder.update(status="finished", ended="2026-01-01T00:00:00Z")
    assert folder.find_status() == "finished"
    assert folder.read_metadata().ended == "2026-01-01T00:00:00Z"


def test_run_with_dead_driver_is_lost(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.update(pid=dead_pid())
    assert folder.find_status() == "lost"
    folder.update(status="interrupted")
    assert folder.find_status() == "interrupted"


def test_driver_elsewhere_without_claim_counts_as_running(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.update(pid=dead_pid(), host="elsewhere")
    assert folder.find_status() == "running"


def test_other_process_with_the_pid_is_not_the_driver(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.update(process_started="1")
    assert folder.find_status() == "lost"


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_run_being_resumed_is_running_until_its_driver_ends(tmp_path: Path, status: str) -> None:
    folder = make(tmp_path)
    folder.end(status)
    with Lease(folder.storage):
        assert folder.find_status() == status, "the driver itself knows better"
    claim = put(folder.storage, replace(Process.this(), pid=os.getppid(), process_started=None))
    assert folder.find_status() == "running"
    claim.unlink()
    put(folder.storage, gone())
    assert folder.find_status() == status

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.disk.lease import Lease
from orchestrator.disk.process import Process
from orchestrator.disk.run_status import find_status
from orchestrator.disk.statuses import Status
from tests.orchestrator.disk.test_lease import gone, put
from tests.orchestrator.disk.test_run_folder import make
from tests.orchestrator.runs.written import change


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_recorded_status_holds_while_the_driver_is_alive(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert find_status(folder) == "running"
    change(folder, status="finished", ended="2026-01-01T00:00:00Z")
    assert find_status(folder) == "finished"
    assert folder.read_metadata().ended == "2026-01-01T00:00:00Z"


def test_run_with_dead_driver_is_lost(tmp_path: Path) -> None:
    folder = make(tmp_path)
    change(folder, pid=dead_pid())
    assert find_status(folder) == "lost"
    change(folder, status="interrupted")
    assert find_status(folder) == "interrupted"


def test_driver_elsewhere_without_claim_counts_as_running(tmp_path: Path) -> None:
    folder = make(tmp_path)
    change(folder, pid=dead_pid(), host="elsewhere")
    assert find_status(folder) == "running"


def test_other_process_with_the_pid_is_not_the_driver(tmp_path: Path) -> None:
    folder = make(tmp_path)
    change(folder, process_started="1")
    assert find_status(folder) == "lost"


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_run_being_resumed_is_running_until_its_driver_ends(tmp_path: Path, status: Status) -> None:
    folder = make(tmp_path)
    folder.run_file.end(status)
    with Lease(folder.storage):
        assert find_status(folder) == status, "the driver itself knows better"
    claim = put(folder.storage, replace(Process.current(), pid=os.getppid(), process_started=None))
    assert find_status(folder) == "running"
    claim.unlink()
    put(folder.storage, gone())
    assert find_status(folder) == status

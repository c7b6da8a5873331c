import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.disk.attempts import Host
from orchestrator.disk.faulthandler_stacks import STACKS
from orchestrator.disk.hang import RankStack
from orchestrator.disk.hang_reports import REQUEST, HangReports, find_hang
from orchestrator.disk.new_run import create_run
from orchestrator.storage import Storage


def stack(rank: int, idle_s: float) -> RankStack:
    return RankStack(rank, "n1", 1000.0, idle_s, 300, False, f"place {rank}", f"stack {rank}\n")


def test_hang_is_found_in_the_newest_attempt(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    for _ in range(2):
        folder.begin_attempt(
            hosts=[Host(rank, "n1", rank, "cpu", "2") for rank in range(2)], world_size=2
        )
    assert find_hang(folder) is None
    before, now = (HangReports(folder, attempt, 2) for attempt in (0, 1))
    before.write(stack(1, 400))
    assert find_hang(folder) is None
    now.write(stack(1, 400))
    (tmp_path / "run/.hang/1-0.hangs").write_text("{")
    found = find_hang(folder)
    assert str(found).endswith(": place 1")
    assert "has made no progress since" in str(found)
    assert found is not None
    assert found.stacks == "stack of rank 1:\nstack 1\n"
    now.withdraw(1)
    assert find_hang(folder) is None


def test_faulthandler_stack_shows_who_holds_the_interpreter_lock(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    folder.begin_attempt(world_size=1)
    path = HangReports(folder, 0, 1).stack_file(0)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_hang(folder) is None
    path.write_text("File task.py, line 3")
    found = find_hang(folder)
    assert found is not None
    assert str(found).startswith("training has made no progress since")
    assert "does not release Python's interpreter lock" in str(found)
    assert "task.py, line 3" in found.stacks


@pytest.mark.parametrize(("limit", "seconds"), [("0:05:00", 300), ("1:00:00.500000", 3600.5)])
def test_time_of_a_faulthandler_stack_is_that_of_the_last_progress(
    tmp_path: Path, limit: str, seconds: float
) -> None:
    """Faulthandler writes once the limit has passed."""
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    folder.begin_attempt(world_size=1)
    reports = HangReports(folder, 0, 1)
    path = reports.stack_file(0)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text(f"Timeout ({limit})!\nThread 0x1 (most recent call first):\n")
    os.utime(path, (10_000, 10_000))
    (stack,) = reports.read()
    assert (stack.at, stack.idle_s) == (10_000, seconds)
    assert stack.is_over_limit


def test_other_files_among_the_stacks_are_skipped(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    for _ in range(2):
        folder.begin_attempt(world_size=1)
    before, now = (HangReports(folder, attempt, 1).stack_file(0) for attempt in (0, 1))
    assert before is not None
    assert now is not None
    before.parent.mkdir(parents=True)
    before.write_text("File old.py, line 1")
    now.write_text("File task.py, line 3")
    (now.parent / ".nfs00000001").write_text("of a network file system")
    found = find_hang(folder)
    assert found is not None
    assert found.stacks.count("line") == 1
    assert "task.py, line 3" in found.stacks


def test_no_stacks_are_listed_on_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank's faulthandler writes only to a disk, and each listing of a bucket costs a request."""
    folder = create_run(f"memory://test-{uuid.uuid4().hex}", "run", "hooks: {}\n")
    folder.begin_attempt(world_size=1)
    listed: list[str] = []
    for name in ("names", "tree"):
        monkeypatch.setattr(Storage, name, recording_folders(getattr(Storage, name), listed))
    assert find_hang(folder) is None
    HangReports(folder, 0, 1).write(stack(0, 400))
    assert find_hang(folder) is not None
    assert ".hang" in listed
    assert STACKS not in listed
    folder.storage.parent.delete("")


def recording_folders(list_folder: Callable[..., Any], listed: list[str]) -> Callable[..., Any]:
    """Return a method of Storage that also records the folder that it lists."""

    def call(storage: Storage, folder: str = "") -> Any:
        listed.append(folder)
        return list_folder(storage, folder)

    return call


def test_driver_requests_stacks(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    notes = HangReports(folder, 0, 1)
    assert not notes.has_request()
    folder.storage.write(REQUEST, "")
    assert notes.has_request()

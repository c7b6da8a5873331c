"""The identity of a driver's process."""

import os
import subprocess
from dataclasses import replace

import psutil
import pytest

from orchestrator.disk.process import Process, is_pid_alive


def test_current_process_is_alive() -> None:
    this = Process.current()
    assert this.pid == os.getpid()
    assert (this.is_visible(), this.is_alive(), this.is_current()) == (True, True, True)


def test_reused_pid_is_another_process() -> None:
    this = Process.current()
    assert not replace(this, process_started="1").is_alive()
    assert replace(this, process_started=None).is_alive(), "one of before, of which it is not known"


def test_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    zombie = replace(Process.current(), pid=child.pid, process_started=None)
    assert not zombie.is_alive()
    assert not is_pid_alive(child.pid)
    child.wait()
    assert not zombie.is_alive()


@pytest.mark.parametrize(
    "change", [{"host": "elsewhere"}, {"boot": "an earlier one"}, {"boot": None}]
)
def test_process_elsewhere_is_not_visible(change: dict[str, str | None]) -> None:
    assert not replace(Process.current(), **change).is_visible()  # type: ignore[arg-type]


def test_program_name_may_contain_brackets(tmp_path: os.PathLike[str]) -> None:
    program = os.path.join(tmp_path, "a) Z 1 (b")
    os.symlink("/bin/sleep", program)
    child = subprocess.Popen([program, "60"])
    try:
        assert is_pid_alive(child.pid)
    finally:
        child.kill()
        child.wait()


def test_other_systems_use_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    this = Process.current()
    assert this.process_started == str(psutil.Process().create_time())
    assert this.is_alive()
    assert not replace(this, process_started="1.5").is_alive()
    assert not replace(this, pid=4194305).is_alive()

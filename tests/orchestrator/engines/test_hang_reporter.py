"""The hang reporter: what it prints, and that it survives its own errors."""

import threading
from pathlib import Path
from uuid import uuid4

import pytest

from orchestrator.disk.hang import RankStack
from orchestrator.disk.hang_reports import HangReports
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines import hang_reporter
from orchestrator.engines.hang_reporter import HangReporter

HANG = "training on n1 has made no progress since"


class Lines:
    """A display that keeps its first line."""

    def __init__(self) -> None:
        self.first = ""
        self.has_line = threading.Event()

    def line(self, text: str) -> None:
        self.first = self.first or text
        self.has_line.set()

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None: ...


def make_hung_run(storage: str | Path) -> RunFolder:
    folder = create_run(storage, "run", "hooks: {}\n")
    folder.begin_attempt(world_size=1)
    stack = RankStack(0, "n1", 1000.0, 400, 300, False, "task.py, line 3", "")
    HangReports(folder, 0, 1).write(stack)
    return folder


def report(folder: RunFolder, *, is_ending: bool = False) -> str:
    lines = Lines()
    with HangReporter(lambda: [folder], lines, lambda: is_ending):
        assert lines.has_line.wait(60)
    return lines.first


def test_reporter_survives_any_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find_hang = hang_reporter.find_hang
    errors = [ZeroDivisionError("of the reporter")]

    def fail_once(folder: RunFolder) -> object:
        if errors:
            raise errors.pop()
        return find_hang(folder)

    monkeypatch.setattr(hang_reporter, "find_hang", fail_once)
    assert report(make_hung_run(tmp_path)).startswith(f"run: {HANG}")
    assert "cannot be checked for hangs: ZeroDivisionError: of the reporter" in caplog.text


def test_reporter_survives_an_error_of_what_it_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_hung_run(tmp_path)
    errors = [ZeroDivisionError("of the list"), OSError("of the list")]

    def fail_twice() -> list[RunFolder]:
        if errors:
            raise errors.pop()
        return [folder]

    lines = Lines()
    with HangReporter(fail_twice, lines, lambda: False):
        assert lines.has_line.wait(60)
    assert lines.first.startswith(f"run: {HANG}")
    assert "the run cannot be checked for hangs: ZeroDivisionError: of the list" in caplog.text


@pytest.mark.parametrize("storage", ["disk", "object store"])
def test_lines_after_ctrl_c_say_that_the_run_waits(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_reporter, "STACK_REQUEST_DELAY_S", 0.0)
    place = tmp_path if storage == "disk" else f"memory://{uuid4().hex}"
    line = report(make_hung_run(place), is_ending=True)
    assert line.startswith(f"run: waiting for a hung process to end: {HANG}")

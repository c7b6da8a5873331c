"""Whatever a user's code raises is a failure of that code, told with its place; and the first failure is the one that is told."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hooks import Hook, State
from orchestrator import run
from orchestrator.engines.lifecycle import failing
from orchestrator.errors import RunError, StorageError
from orchestrator.records.run_folder import RunFolder
from orchestrator.storage import Storage
from tests.tasks import described

RAISED: dict[str, BaseException] = {
    "exit": SystemExit(0),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
    "stop": StopIteration(),
    "surrogate": ValueError("half \udc80"),
}


@dataclass
class Raises(Hook):
    """Raises at the first step."""

    what: str = "exit"

    def on_step(self, state: State) -> None:
        raise RAISED[self.what]


@pytest.mark.parametrize("what", RAISED)
def test_it_fails_the_run_and_is_told_with_its_place(tmp_path: Path, what: str) -> None:
    hooks = {"raises": {"type": f"{__name__}:Raises", "what": what}}
    with pytest.raises(RunError, match=rf"{type(RAISED[what]).__name__}.*{Path(__file__).name}:\d+, in on_step"):
        run(described(hooks=hooks), tmp_path, "run", local=True)
    folder = RunFolder(tmp_path, "run")
    metadata = folder.metadata()
    assert metadata.status == "failed"
    assert metadata.error is not None
    assert type(RAISED[what]).__name__ in metadata.error
    assert metadata.error.encode()
    assert b"Traceback" in folder.storage.read("log.txt")


def test_the_first_failure_is_told_where_the_second_is_that_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(tmp_path, "run", "hooks: {}\n")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="ZeroDivisionError: the first"), failing(folder):
        raise ZeroDivisionError("the first")
    assert "cannot be written down" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "advice"), [
    (errno.ENOSPC, "The disk is full, or has room for no more files: make room"),
    (errno.EROFS, "It can only be read: give another storage"),
    (errno.EIO, "Look at the disk"),
])  # fmt: skip
def test_what_the_system_refuses_is_told_with_what_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def refuses(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuses)
    with pytest.raises(StorageError, match=advice) as told:
        Storage(tmp_path).write("run.json", "{}")
    assert str(told.value).startswith(f"{tmp_path}/run.json: {os.strerror(number)}")


def test_a_file_where_a_folder_should_be_and_names_that_are_too_long(tmp_path: Path) -> None:
    (tmp_path / "stats").write_text("")
    with pytest.raises(StorageError, match="A file lies where a folder should be"):
        Storage(tmp_path).write("stats/rows", "")
    with pytest.raises(StorageError, match="Give a shorter name"):
        Storage(tmp_path).exists("x" * 300)

"""The failure that is recorded and raised; of each kind of error in test_lifecycle."""

import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.failure_record import recording_failure
from orchestrator.errors import RunError, StorageError
from orchestrator.storage import Storage


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path, "run", "hooks: {}\n")


def test_first_failure_is_raised_if_it_cannot_be_recorded(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="ZeroDivisionError: the first"), recording_failure(folder):
        raise ZeroDivisionError("the first")
    assert "Could not record the failure" in capsys.readouterr().err


def test_interrupt_stays_one_if_the_storage_is_down(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Storage, "read", Mock(side_effect=StorageError("no answer")))
    with pytest.raises(KeyboardInterrupt), recording_failure(folder):
        raise KeyboardInterrupt
    assert f"Could not record the failure of {folder}: no answer" in capsys.readouterr().err


def test_interrupt_is_no_failure_of_a_complete_run(folder: RunFolder) -> None:
    folder.run_file.end("finished")
    with pytest.raises(KeyboardInterrupt), recording_failure(folder):
        raise KeyboardInterrupt
    metadata = folder.read_metadata()
    assert (metadata.status, metadata.error) == ("finished", None)

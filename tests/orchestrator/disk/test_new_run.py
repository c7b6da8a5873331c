"""A new run whose name is taken: refused, numbered, or in place of the other run."""

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator import UsageError
from orchestrator.disk.if_exists import IfExists
from orchestrator.disk.lease import Lease
from orchestrator.disk.new_run import create_run, find_free_name, taking_name
from orchestrator.disk.run_folder import RunFolder
from orchestrator.storage import Storage
from tests.orchestrator.runs.written import change, new_run


def ended(root: Path, name: str = "digits", status: str = "finished", **metadata: Any) -> RunFolder:
    """A run that has trained."""
    folder = new_run(root, name, f"name: {name}\nhooks: {{}}\n", **metadata)
    folder.append_report({"attempt": 0})
    change(folder, status=status)
    return folder


def take(folder: RunFolder, if_exists: IfExists, *sources: Storage) -> str:
    """The name that a new run gets."""
    with taking_name(folder, if_exists, sources) as (taken, _):
        return create_run(taken.storage.parent, taken.name, "name: new\n").name


def test_storage_that_cannot_be_a_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text("")
    with pytest.raises(UsageError, match=re.escape(f"the storage {file} is a file; pass a folder")):
        take(RunFolder(file, "digits"), "error")
    inside = re.escape(f"the storage {file}/runs would be inside the file {file}; pass a folder")
    with pytest.raises(UsageError, match=inside):
        take(RunFolder(file / "runs", "digits"), "number")
    assert file.is_file()
    with pytest.raises(UsageError, match="the storage /proc/none cannot be created"):
        take(RunFolder("/proc/none", "digits"), "error")


def test_number_takes_the_first_free_name(tmp_path: Path) -> None:
    wanted = RunFolder(tmp_path, "digits")
    assert take(wanted, "number") == "digits"
    ended(tmp_path / "other", "digits-2")
    RunFolder(tmp_path, "digits").append_report({"attempt": 0})
    (tmp_path / "digits-3").write_text("a file")
    (tmp_path / "digits-2024").mkdir()
    assert find_free_name(wanted).name == "digits-2"
    assert [take(wanted, "number"), take(wanted, "number")] == ["digits-2", "digits-4"]
    assert sorted(os.listdir(tmp_path)) == [
        "digits",
        "digits-2",
        "digits-2024",
        "digits-3",
        "digits-4",
        "other",
    ]


def test_number_passes_over_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits/notes.txt").write_text("mine")
    assert take(RunFolder(tmp_path, "digits"), "number") == "digits-2"
    assert os.listdir(tmp_path / "digits") == ["notes.txt"]


def test_number_passes_over_names_that_other_drivers_are_taking(tmp_path: Path) -> None:
    wanted = RunFolder(tmp_path, "digits")
    with ExitStack() as stack:
        taken = [stack.enter_context(taking_name(wanted, "number")) for _ in range(3)]
        assert [folder.name for folder, _ in taken] == ["digits", "digits-2", "digits-3"]


@pytest.mark.parametrize("status", ["finished", "stopped", "failed", "interrupted"])
def test_replace_removes_the_other_run(tmp_path: Path, status: str) -> None:
    old = ended(tmp_path, status=status)
    assert take(old, "replace") == "digits"
    assert old.read_experiment_text() == "name: new\n"
    assert old.read_reports() == []


def test_replace_needs_no_other_run(tmp_path: Path) -> None:
    assert take(RunFolder(tmp_path, "digits"), "replace") == "digits"


def test_replace_leaves_a_running_run_alone(tmp_path: Path) -> None:
    old = ended(tmp_path, status="running")
    with Lease(old.storage), pytest.raises(UsageError, match="digits is running"):
        take(old, "replace")
    change(old, status="interrupted")  # which a resume has just leased
    with Lease(old.storage), pytest.raises(UsageError, match="digits is still running"):
        take(old, "replace")
    assert len(old.read_reports()) == 1


@pytest.mark.parametrize(
    "files", [["notes.txt"], ["experiment.yaml"], ["run.json"], ["run.json", "weights.pt"]]
)
def test_replace_leaves_files_alone_that_are_not_a_run(tmp_path: Path, files: list[str]) -> None:
    (tmp_path / "digits").mkdir()
    for name in files:
        (tmp_path / "digits" / name).write_text('{"mine": 1}')
    with pytest.raises(UsageError):
        take(RunFolder(tmp_path, "digits"), "replace")
    assert sorted(os.listdir(tmp_path / "digits")) == sorted(files)


def test_replace_keeps_what_the_new_run_starts_from(tmp_path: Path) -> None:
    old = ended(tmp_path)
    for source in (old.storage, old.storage / "checkpoints"):
        with pytest.raises(UsageError, match="cannot be replaced: the new run starts from it"):
            take(old, "replace", source)
    assert take(old, "replace", Storage(tmp_path / "digits-2")) == "digits"


def test_replace_leaves_a_trial_alone(tmp_path: Path) -> None:
    ended(tmp_path, "sweep")
    trial = ended(tmp_path / "sweep/trials", "trial-0000")
    with pytest.raises(UsageError, match="is a trial"):
        take(trial, "replace")


def test_wrong_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="if_exists must be 'error', 'number' or 'replace', got 'overwrite'"
    ):
        take(RunFolder(tmp_path, "digits"), "overwrite")  # type: ignore[arg-type]

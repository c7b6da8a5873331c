"""What is said of a run that has the name of a new one."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator import UsageError
from orchestrator.disk.lease import Lease
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.taken_name import check_name_is_free
from tests.orchestrator.runs.written import change, new_run


def ended(root: Path, name: str = "digits", status: str = "finished", **metadata: Any) -> RunFolder:
    """A run that has trained."""
    folder = new_run(root, name, f"name: {name}\nhooks: {{}}\n", **metadata)
    folder.append_report({"attempt": 0})
    change(folder, status=status)
    return folder


@pytest.mark.parametrize(
    ("status", "advised"),
    [("finished", False), ("stopped", False), ("failed", True), ("interrupted", True)],
)
def test_refusal_advises_to_resume_only_what_can_be_resumed(
    tmp_path: Path, status: str, advised: bool
) -> None:
    old = ended(tmp_path, status=status)
    with pytest.raises(UsageError) as refused:
        check_name_is_free(old)
    assert (f"To resume it: hookyard resume {old}" in str(refused.value)) is advised
    assert "--if-exists number" in str(refused.value)
    assert "--if-exists replace" in str(refused.value)


def test_refusal_of_a_running_run_does_not_advise_to_replace_it(tmp_path: Path) -> None:
    old = ended(tmp_path, status="running")
    with Lease(old.storage), pytest.raises(UsageError) as refused:
        check_name_is_free(old)
    assert "exists and is running. To follow it: hookyard watch" in str(refused.value)
    assert "replace" not in str(refused.value)


def test_refusal_of_a_damaged_run_says_what_is_damaged(tmp_path: Path) -> None:
    old = ended(tmp_path)
    old.storage.write("run.json", "{")
    with pytest.raises(UsageError) as refused:
        check_name_is_free(old)
    assert "run.json is damaged" in str(refused.value)
    assert not any(word in str(refused.value) for word in ("resume", "replace"))


def test_refusal_of_a_notebook_s_run_advises_to_resume_it_there(tmp_path: Path) -> None:
    old = ended(tmp_path, status="interrupted", code="class Task: ...")
    with pytest.raises(UsageError) as refused:
        check_name_is_free(old)
    assert f"call resume('{old}') in the script or notebook" in str(refused.value)
    assert "hookyard resume" not in str(refused.value)

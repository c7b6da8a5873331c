import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.cluster.probe import collect_facts, probe_node
from tests.tasks import described


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """A storage with the driver's file."""
    (tmp_path / "check").mkdir()
    (tmp_path / "check/driver").write_text("driver")
    return tmp_path


def test_facts_describe_this_machine() -> None:
    facts = collect_facts()
    assert facts.versions["python"] == platform.python_version()
    assert facts.versions["torch"] == version("torch")
    assert facts.versions["ray"] == version("ray")
    assert facts.versions["project"].startswith(f"{version('hookyard')}+")
    assert facts.disk_free_bytes > 0


def test_project_version_changes_with_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for text in ("a = 1", "a = 2", "a = 1"):
        for package in ("hooks", "orchestrator"):
            (tmp_path / package).mkdir(exist_ok=True)
            (tmp_path / package / "module.py").write_text(text)
        packages = (tmp_path / "hooks", tmp_path / "orchestrator")
        monkeypatch.setattr("orchestrator.cluster.probe._PACKAGES", packages)
        seen.add(collect_facts().versions["project"])
    assert len(seen) == 2


def test_a_shared_storage_can_be_read_and_written(storage: Path) -> None:
    answers = probe_node(str(storage), "check", "b", described().source)
    assert (answers.storage, answers.imports, answers.gpus) == (None, None, None)
    assert (storage / "check/b").read_text() == "b"


def test_unshared_or_unwritable_storage_is_a_problem(storage: Path) -> None:
    problem = probe_node(str(storage), "other", "b").storage
    assert problem == "the driver's file is not there: this node has another folder of that name"
    (storage / "check/b").mkdir()
    problem = probe_node(str(storage), "check", "b").storage
    assert problem is not None
    assert "Is a directory" in problem


def test_experiment_that_cannot_be_imported_is_a_problem(storage: Path) -> None:
    source = described().source.with_values({"task": "not_on_this_node:Task"})
    problem = probe_node(str(storage), "check", "b", source).imports
    assert problem is not None
    assert "not_on_this_node" in problem

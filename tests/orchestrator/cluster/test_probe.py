from __future__ import annotations

import platform
import socket
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.cluster.probe import Probe
from tests.tasks import described


def test_facts_are_of_this_machine() -> None:
    facts = Probe().facts()
    assert facts.versions["python"] == platform.python_version()
    assert facts.versions["torch"] == version("torch")
    assert facts.versions["ray"] == version("ray")
    assert facts.versions["project"].startswith(f"{version('hookyard')}+")
    assert facts.disk_free_bytes > 0


def test_other_code_is_another_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for text in ("a = 1", "a = 2", "a = 1"):
        for package in ("hooks", "orchestrator"):
            (tmp_path / package).mkdir(exist_ok=True)
            (tmp_path / package / "module.py").write_text(text)
        spec = lambda package: type("Spec", (), {"submodule_search_locations": [str(tmp_path / package)]})  # noqa: E731
        monkeypatch.setattr("orchestrator.cluster.probe.find_spec", spec)
        seen.add(Probe().facts().versions["project"])
    assert len(seen) == 2


def test_a_storage_that_is_shared_is_read_and_marked(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    (tmp_path / "marks/driver").write_text("driver")
    assert Probe().check_storage(str(tmp_path), "marks", "b") is None
    assert (tmp_path / "marks/b").read_text() == "b"


def test_a_folder_of_ones_own_is_no_shared_storage(tmp_path: Path) -> None:
    assert (
        Probe().check_storage(str(tmp_path), "marks", "b")
        == "the driver's file is not there: this node has another folder of that name"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_storage_that_only_reads_is_told(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    (tmp_path / "marks/driver").write_text("driver")
    (tmp_path / "marks/b").mkdir()
    told = Probe().check_storage(str(tmp_path), "marks", "b")
    assert told is not None
    assert "Is a directory" in told


def test_an_experiment_that_cannot_be_imported_here_is_told() -> None:
    source = described().source
    assert Probe().check_imports(source) is None
    told = Probe().check_imports(source.with_values({"task": "not_on_this_node:Task"}))
    assert told is not None
    assert "not_on_this_node" in told


def test_what_listens_is_connected_to_and_what_does_not_is_told() -> None:
    probe = Probe()
    assert probe.check_connection("127.0.0.1", probe.listen()) is None
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        told = probe.check_connection("127.0.0.1", unused.getsockname()[1])
    assert told is not None
    assert "refused" in told

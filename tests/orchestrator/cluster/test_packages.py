from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cluster.packages import missing_packages, needed_packages
from orchestrator.config.load import load_experiment

STUDY = """
from __future__ import annotations

import csv, json.decoder as decoder
from tests.tasks import Points
from . import sibling


class Study(Points):
    def data(self):
        from sklearn.datasets import load_iris
        import installed_nowhere
"""


def test_what_a_task_imports_in_a_function_is_needed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "packed_study").mkdir()
    (tmp_path / "packed_study/task.py").write_text(STUDY)
    (tmp_path / "packed_study/sibling.py").touch()
    (tmp_path / "study.yaml").write_text(
        "name: study\ntask: packed_study.task:Study\nepochs: 1\nhooks: {wandb: {mode: offline}}\n"
    )
    found = needed_packages(load_experiment("study.yaml"))
    assert {"csv", "json", "sklearn", "tests", "wandb"} <= set(found)
    # What is missing on the driver as well is nothing that a node lacks.
    assert "installed_nowhere" not in found
    assert "sibling" not in found


def test_only_what_is_not_installed_is_lacking() -> None:
    assert missing_packages(["torch", "not_on_this_node", "json"]) == ["not_on_this_node"]

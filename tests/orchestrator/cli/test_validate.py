"""`hookyard validate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from tests.orchestrator.config.samples import HERE

TEXT = f"name: line\ntask: {HERE}:Line\nepochs: 1\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "line.yaml").write_text(TEXT)
    return str(tmp_path / "line.yaml")


def test_a_right_one(file: str) -> None:
    result = CliRunner().invoke(app, ["validate", file, "seed=3"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "line.yaml is ok" in result.stderr


def test_a_wrong_one(file: str) -> None:
    result = CliRunner().invoke(app, ["validate", file, "seed=x", "epoch=1"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "override 'epoch=1': epoch: unknown key (did you mean 'epochs'?)",
        "override 'seed=x': seed: must be a whole number, got 'x'",
    ]


def test_json(file: str) -> None:
    right = CliRunner().invoke(app, ["validate", file, "--json"])
    assert (right.exit_code, json.loads(right.stdout)) == (0, {"ok": True, "problems": []})
    Path(file).write_text(TEXT + "epoch: 2\n")
    wrong = CliRunner().invoke(app, ["validate", file, "--json"])
    assert wrong.exit_code == 2
    assert json.loads(wrong.stdout)["problems"] == [
        {"path": "epoch", "message": "unknown key", "file": file, "line": 4, "suggestion": "did you mean 'epochs'?"}
    ]


def test_no_such_file() -> None:
    result = CliRunner().invoke(app, ["validate", "nowhere.yaml"])
    assert result.exit_code == 2
    assert result.stderr == "nowhere.yaml: cannot be read: No such file or directory\n"

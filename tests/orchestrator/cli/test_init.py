"""`hookyard init`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_starter_files_run_under_the_chosen_name(folder: Path) -> None:
    written = call("init", "two_arms")
    assert written.exit_code == 0, written.output
    assert sorted(path.name for path in folder.iterdir()) == [
        "two_arms.py",
        "two_arms.yaml",
        "two_arms_sweep.yaml",
    ]
    everything = "".join(path.read_text() for path in folder.iterdir())
    assert "class TwoArmsTask(Task):" in everything
    assert "hookyard init" not in everything
    done = call("run", "two_arms.yaml", "epochs=1", "--local", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["name"], told["status"]) == ("two_arms", "finished")
    rows = json.loads(
        call(
            "stats", told["path"], "--columns", "confidence", "--by", "rank", "--format", "json"
        ).stdout
    )
    assert 0.5 <= rows[0]["confidence"] <= 1
    assert call("validate", "two_arms_sweep.yaml").exit_code == 0


def test_init_overwrites_nothing(folder: Path) -> None:
    (folder / "arms.yaml").write_text("mine")
    refused = call("init", "arms")
    assert refused.exit_code == 2
    assert "arms.yaml would be overwritten. Nothing was written" in refused.stderr
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("arms.yaml", "mine")]


@pytest.mark.parametrize("inside", ["__init__.py", "data.bin"])
def test_init_refuses_the_name_of_a_folder(folder: Path, inside: str) -> None:
    (folder / "arms").mkdir()
    (folder / "arms" / inside).touch()
    refused = call("init", "arms")
    assert refused.exit_code == 2
    assert "the folder arms/ has the same module name" in refused.stderr
    assert [path.name for path in folder.iterdir()] == ["arms"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two-arms", "cannot be a Python module"),
        ("class", "it is a keyword"),
        ("json", "a module 'json' exists"),
    ],
)
def test_init_refuses_names_that_cannot_be_imported(folder: Path, name: str, said: str) -> None:
    refused = call("init", name)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert not list(folder.iterdir())

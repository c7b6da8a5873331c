"""What commands print of a location: never its credentials."""

from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from orchestrator import ConfigError, load_experiment, open_sweep
from orchestrator.cli import app
from orchestrator.disk.new_run import create_run
from orchestrator.errors import UsageError


@pytest.fixture
def storage() -> str:
    """A storage with a single run."""
    location = f"memory://AKIA:hunter2@{uuid4().hex}/runs"
    create_run(location, "digits", "hooks: {}\n")
    return location


@pytest.mark.parametrize(
    ("command", "place", "message"),
    [
        (["ls", "--storage"], "missing", "does not exist"),
        (["ls", "--storage"], "digits", "is a run, not a folder of runs"),
        (["ls", "nothing", "--storage"], "", "no matching runs in"),
        (["query", "select 1", "--storage"], "missing", "does not exist"),
        (["show", "--trial", "0"], "digits", "is a single run"),
        (["resume", "--failed"], "digits", "is a single run"),
        (["stats", "runs/digits", "--output"], "rows.csv", "needs a data format"),
        (
            ["query", "select 1", "--storage", ".", "--format", "csv", "--output"],
            "rows/",
            "a folder",
        ),
        (["show", "runs/digits"], "digits", "unexpected argument"),
        (["stats", "runs/digits", "--by"], "digits", "--by must be one of"),
    ],
)
def test_credentials_are_not_printed(
    storage: str,
    command: list[str],
    place: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*command, f"{storage}/{place}" if place else storage])
    assert message in result.output
    assert "hunter2" not in result.output
    assert "AKIA" not in result.output


@pytest.mark.parametrize(
    "command", [["run"], ["sweep"], ["validate"], ["verify"], ["submit", "--address", "http://x"]]
)
def test_credentials_of_an_experiment_file_are_not_printed(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "https://AKIA:hunter2@host/x.yaml"])
    assert "https://host/x.yaml: does not exist" in f"{result.output}{result.exception}"
    assert "hunter2" not in f"{result.output}{result.exception}"
    assert "AKIA" not in f"{result.output}{result.exception}"


def test_credentials_of_a_base_are_not_printed(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("base: https://AKIA:hunter2@host/base.yaml\n")
    with pytest.raises(ConfigError, match=r"https://host/base\.yaml does not exist") as told:
        load_experiment(tmp_path / "x.yaml")
    assert "hunter2" not in str(told.value)


def test_error_for_a_run_that_is_no_sweep_hides_credentials(storage: str) -> None:
    with pytest.raises(UsageError, match="is a single run, not a sweep") as told:
        open_sweep(f"{storage}/digits")
    assert "hunter2" not in str(told.value)

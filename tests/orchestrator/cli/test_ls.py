"""`hookyard ls`: its filters, its columns, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.disk.new_run import create_run
from tests.orchestrator.runs.written import new_run


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def test_ls_refuses_a_run_as_storage(tmp_path: Path) -> None:
    create_run(tmp_path, "digits", "hooks: {}\n")
    listed = call("ls", "--storage", f"{tmp_path}/digits")
    assert (listed.exit_code, listed.stderr) == (
        2,
        f"{tmp_path}/digits is a run, not a folder of runs. To see it: hookyard show {tmp_path}/digits\n",
    )
    assert (
        call("ls", "--storage", str(tmp_path))
        .stdout.splitlines()[1]
        .startswith("digits  run   running")
    )


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """Three runs: one that failed, two that finished."""
    for name, status, tags in (
        ("digits-a", "failed", []),
        ("digits-b", "finished", ["slow", "kept"]),
        ("points", "finished", ["slow"]),
    ):
        new_run(
            tmp_path, name, "hooks: {}\n", tags=tags, notes=f"about {name}" if tags else ""
        ).run_file.end(status)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["digits*"], ["digits-a", "digits-b"]),
        (["points", "digits-a"], ["digits-a", "points"]),
        (["--status", "finished"], ["digits-b", "points"]),
        (["--tag", "slow"], ["digits-b", "points"]),
        (["--tag", "slow", "--tag", "kept"], ["digits-b"]),
        (["points", "--status", "failed"], []),
    ],
)
def test_ls_filters_by_name_status_and_tag(
    storage: str, arguments: list[str], found: list[str]
) -> None:
    listed = json.loads(call("ls", "--storage", storage, "--json", *arguments).stdout)
    assert sorted(row["name"] for row in listed) == found


def test_ls_shows_tags_and_notes(storage: str) -> None:
    lines = call("ls", "--storage", storage).stdout.splitlines()
    assert lines[0].split() == [
        "name",
        "kind",
        "status",
        "best",
        "tags",
        "notes",
        "started",
        "took",
    ]
    assert [line for line in lines if "slow kept  about digits-b" in line]
    assert "tags" not in call("ls", "digits-a", "--storage", storage).stdout.splitlines()[0]


def test_ls_refuses_unknown_filters(storage: str) -> None:
    refused = call("ls", "--storage", storage, "--status", "done")
    assert (refused.exit_code, refused.stderr) == (
        2,
        "--status must be one of running, finished, stopped, interrupted, failed, lost, got 'done'\n",
    )
    assert call("ls", "nothing", "--storage", storage).stderr == f"no matching runs in {storage}\n"

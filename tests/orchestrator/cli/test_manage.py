"""`hookyard ls`, `note` and `rm`."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator import run
from orchestrator.cli import app
from orchestrator.disk.new_run import create_run
from tests.tasks import described


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_missing_storage_exits_with_2(tmp_path: Path, more: list[str]) -> None:
    listed = call("ls", "--storage", f"{tmp_path}/nowhere", *more)
    assert (listed.exit_code, listed.stdout) == (2, "")
    assert listed.stderr.startswith(f"the folder {tmp_path}/nowhere does not exist; ")


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


@pytest.mark.parametrize(
    "verb", ["show", "stats", "doctor", "report", "watch", "resume", "compare"]
)
def test_every_verb_reports_a_missing_run(tmp_path: Path, verb: str) -> None:
    told = call(verb, f"{tmp_path}/nowhere", *([f"{tmp_path}/b"] if verb == "compare" else []))
    assert (told.exit_code, told.stdout) == (2, "")
    assert f"{tmp_path}/nowhere is not a run: " in told.stderr


def test_checkpoint_of_a_run_is_not_taken_for_a_run(tmp_path: Path) -> None:
    create_run(tmp_path, "first", "hooks: {}\n")
    told = call("show", f"{tmp_path}/first@best")
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == (
        f"{tmp_path}/first@best is not a run: this takes a run without a checkpoint,"
        f" {tmp_path}/first\n"
    )


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """Three runs: one that failed, two that finished."""
    for name, status, tags in (
        ("digits-a", "failed", []),
        ("digits-b", "finished", ["slow", "kept"]),
        ("points", "finished", ["slow"]),
    ):
        create_run(
            tmp_path, name, "hooks: {}\n", tags=tags, notes=f"about {name}" if tags else ""
        ).end(status)
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


def test_run_starts_with_the_notes_and_tags_of_its_experiment(tmp_path: Path) -> None:
    folder = run(
        described(epochs=1, tags=["baseline", "small"], notes="The first."), tmp_path, local=True
    ).folder
    assert (folder.read_metadata().tags, folder.read_metadata().notes) == (
        ["baseline", "small"],
        "The first.",
    )
    assert (
        call(
            "note", str(folder), "Too slow.", "--tag=slow", "--tag=small", "--untag=baseline"
        ).exit_code
        == 0
    )
    assert (folder.read_metadata().tags, folder.read_metadata().notes) == (
        ["small", "slow"],
        "Too slow.",
    )
    assert call("note", str(folder), "--tag", "kept").exit_code == 0
    assert (folder.read_metadata().tags, folder.read_metadata().notes) == (
        ["small", "slow", "kept"],
        "Too slow.",
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to note"),
        (["--untag", "slow"], "has no tag slow; it has no tags"),
        (["--tag", ""], "--tag must not be empty"),
        (["text"], "is still running"),
    ],
)
def test_note_refuses_wrong_usage(tmp_path: Path, arguments: list[str], says: str) -> None:
    folder = create_run(tmp_path, "one", "hooks: {}\n")
    with folder.lease() if arguments == ["text"] else nullcontext():
        refused = call("note", str(folder), *arguments)
    assert refused.exit_code == 2
    assert says in refused.stderr

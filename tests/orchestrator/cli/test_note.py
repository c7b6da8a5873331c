"""`hookyard note`: what it refuses, and the notes with which a run starts."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator import run
from orchestrator.cli import app
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_status import make_lease
from tests.tasks import described


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


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
    with make_lease(folder) if arguments == ["text"] else nullcontext():
        refused = call("note", str(folder), *arguments)
    assert refused.exit_code == 2
    assert says in refused.stderr

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator import run
from orchestrator.cli import app
from orchestrator.records.run_folder import RunFolder
from tests.tasks import described


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["note", *arguments])


def test_a_run_begins_with_its_experiment_s_notes_and_tags(tmp_path: Path) -> None:
    folder = run(described(epochs=1, tags=["baseline", "small"], notes="The first."), tmp_path, local=True).folder
    assert (folder.metadata().tags, folder.metadata().notes) == (["baseline", "small"], "The first.")
    assert call(str(folder), "Too slow.", "--tag", "slow", "--tag", "small", "--untag", "baseline").exit_code == 0
    assert (folder.metadata().tags, folder.metadata().notes) == (["small", "slow"], "Too slow.")
    assert call(str(folder), "--tag", "kept").exit_code == 0
    assert (folder.metadata().tags, folder.metadata().notes) == (["small", "slow", "kept"], "Too slow.")


@pytest.mark.parametrize(
    ("status", "arguments", "says"),
    [
        ("finished", [], "say what to note"),
        ("finished", ["--untag", "slow"], "has no tag slow; it has none"),
        ("running", ["text"], "is still running"),
    ],
)
def test_what_is_refused(tmp_path: Path, status: str, arguments: list[str], says: str) -> None:
    folder = RunFolder.create(tmp_path, "one", "hooks: {}\n")
    folder.update(status=status)
    refused = call(str(folder), *arguments)
    assert refused.exit_code == 2
    assert says in refused.stderr

"""Runs and storages that do not exist, for every subcommand."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.disk.new_run import create_run


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_missing_storage_exits_with_2(tmp_path: Path, more: list[str]) -> None:
    listed = call("ls", "--storage", f"{tmp_path}/nowhere", *more)
    assert (listed.exit_code, listed.stdout) == (2, "")
    assert listed.stderr.startswith(f"the folder {tmp_path}/nowhere does not exist; ")


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

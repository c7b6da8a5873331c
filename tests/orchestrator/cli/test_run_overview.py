"""The overview of a run as text."""

from pathlib import Path

from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.disk.new_run import create_run
from tests.orchestrator.runs.written import change


def test_each_line_of_an_error_has_a_line(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "made", "hooks: {}\n")
    change(folder, status="failed", error="two problems:\nthe \x1b[31mfirst\nthe second")
    shown = CliRunner().invoke(app, ["show", str(folder)])
    assert "error: two problems:\n  the \\x1b[31mfirst\n  the second\n" in shown.stdout

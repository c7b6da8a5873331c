"""`hookyard run --pdb`: where it stops, and where there is nothing to stop."""

import io
import json
import sys

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.cli.debugger import check_terminal, post_mortem
from orchestrator.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def loads(text: str) -> object:
    """Fails within a library."""
    return json.loads(text)


def fails() -> None:
    """Fails as an engine does that tells of a rank's error."""
    try:
        loads("{")
    except ValueError as error:
        raise RuntimeError("rank 0: failed") from error


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("p 'text is ' + text\nq\n"))


def test_debugger_stops_in_the_experiments_frame(
    typed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError), post_mortem(True):
        fails()
    shown = capsys.readouterr()
    assert "'text is {'" in shown.out
    assert "JSONDecodeError: Expecting property name" in shown.err


def test_usage_errors_are_not_debugged(capsys: pytest.CaptureFixture[str]) -> None:
    for asked, error in ((True, UsageError("no such file")), (False, RuntimeError("failed"))):
        with pytest.raises(type(error)), post_mortem(asked):
            raise error
    assert capsys.readouterr().out == ""


def test_pdb_needs_a_local_run() -> None:
    told = CliRunner().invoke(app, ["run", "spirals.yaml", "--pdb"])
    assert (told.exit_code, told.stderr) == (
        2,
        "--pdb debugs training in this process: add --local\n",
    )


def test_pdb_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(UsageError, match="--pdb needs a terminal"):
        check_terminal()
    monkeypatch.setattr(sys, "stdin", Terminal())
    check_terminal()

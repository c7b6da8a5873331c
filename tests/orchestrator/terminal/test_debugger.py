"""Breakpoints while the display of a terminal is live."""

import io
import sys

import pytest

from orchestrator.terminal.debugger import has_other_debugger
from orchestrator.terminal.display import TerminalDisplay


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)


def typed(monkeypatch: pytest.MonkeyPatch, *commands: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands) + "\n"))


def stopping(display: TerminalDisplay) -> int:
    seen = 7
    breakpoint()
    return seen


def test_display_pauses_at_a_breakpoint(
    terminal: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "p seen, display._live", "n", "p display._live", "c")
    before = sys.breakpointhook
    with TerminalDisplay() as display:
        display.progress("train", 1, 10)
        assert stopping(display) == 7
        assert display._live is not None
    assert sys.breakpointhook is before
    shown = capsys.readouterr().out
    assert "(7, None)" in shown
    assert __file__ in shown.splitlines()[0]
    assert "-> return seen" in shown
    assert shown.count("None") == 2


def test_display_is_off_with_another_debugger(
    terminal: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "builtins.print")
    assert has_other_debugger()
    with TerminalDisplay() as display:
        display.progress("train", 1, 10)
        breakpoint("stopped")
    shown = capsys.readouterr()
    assert shown.out == "stopped\n"
    assert shown.err == ""


def test_disabled_breakpoints_stay_disabled(
    terminal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    with TerminalDisplay() as display:
        assert stopping(display) == 7

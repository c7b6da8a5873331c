"""The display of a driver on a terminal and elsewhere."""

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest

from orchestrator.storage import Storage
from orchestrator.terminal.display import TerminalDisplay


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_go_to_stderr_and_with_the_time_to_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "x" * 300
    codes = "time 10:100:30 of a:key:b"  # rich has emojis of these names
    with TerminalDisplay(Storage(tmp_path)) as display:
        display.line("epoch 0 [bold]is no markup[/bold] 1/2")
        display.line(long)
        display.line(codes)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"epoch 0 [bold]is no markup[/bold] 1/2\n{long}\n{codes}\n"
    log = (tmp_path / "log.txt").read_text().splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d epoch 0 \[bold\]is no markup\[/bold\] 1/2", log[0]
    )
    assert log[1].endswith(f" {long}")
    assert log[2].endswith(f" {codes}")
    assert len(log) == 3


def test_log_is_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        with TerminalDisplay(Storage(tmp_path)) as display:
            for number in range(45):
                display.line(str(number))
            assert len((tmp_path / "log.txt").read_text().splitlines()) % 45 == 0
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 90


def test_log_is_written_when_the_run_fails(tmp_path: Path) -> None:
    display = TerminalDisplay(Storage(tmp_path))
    with pytest.raises(RuntimeError), display:
        fail_after_a_line(display)
    assert "the last words" in (tmp_path / "log.txt").read_text()


def fail_after_a_line(display: TerminalDisplay) -> None:
    display.line("the last words")
    raise RuntimeError


def test_log_is_written_if_the_terminal_fails_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store gets lines in batches."""
    storage = Storage(f"memory://test-{uuid4().hex}")
    display = TerminalDisplay(storage)
    monkeypatch.setattr(display, "_stop", Mock(side_effect=OSError("the terminal is gone")))
    with pytest.raises(OSError, match="the terminal is gone"), display:
        display.line("the last words")
    assert b"the last words" in storage.read("log.txt")


def test_progress_without_a_terminal_is_an_occasional_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    time = Time()
    with TerminalDisplay(clock=time) as display:
        for done in range(100):
            time.now = done
            display.progress("train", done, 100, "loss 0.5")
            display.progress("val", done, 10)
    assert capsys.readouterr().err.splitlines() == [
        line for done in (30, 60, 90) for line in (f"train {done}/100 loss 0.5", f"val {done}/10")
    ]


@pytest.mark.parametrize(
    ("moves", "bars"),
    [
        (
            [("train", 1, 10), ("val", 1, 5, "now"), ("train", 4, 10, "loss 0.5")],
            ["train .* 4/10 .* loss 0.5", "val .* 1/5 .* now"],
        ),
        (
            [("val/[dim]", 1, 5, "[bold]0.5 a:key:b")],
            [r"val/\[dim\] .* 1/5 .* \[bold\]0.5 a:key:b"],
        ),
        ([("train", 1, 10), ("val", 1, 5), ("train", 10, 10)], ["val .* 1/5 "]),
        ([("train", 10, 10), ("train", 1, 10)], ["train .* 1/10 "]),
    ],
)
def test_each_label_has_a_bar_until_it_is_full(
    moves: list[Any],
    bars: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with TerminalDisplay() as display:
        for move in moves:
            display.progress(*move)
    shown = capsys.readouterr()
    assert shown.out == ""
    # What is drawn as it ends, before that is taken away again.
    lines = (
        re.sub(r"\x1b\[\?25h.*|\x1b\[[\d;]*m", "", shown.err, flags=re.DOTALL)
        .rpartition("\x1b[2K")[2]
        .splitlines()
    )
    assert len(lines) == len(bars)
    assert all(re.match(bar, line) for bar, line in zip(bars, lines, strict=True))


def test_frame_replaces_the_bars(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with TerminalDisplay(frame=lambda lines: "three of eight" if lines > 1 else "") as display:
        display.progress("trials", 3, 8)
        display.line("one is over")
    shown = capsys.readouterr().err
    assert "three of eight" in shown
    assert "one is over" in shown
    assert "3/8" not in shown


def test_without_a_terminal_a_frame_is_never_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    def frame(lines: int) -> str:
        pytest.fail("there is nothing to draw on")

    with TerminalDisplay(frame=frame) as display:
        display.line("one is over")
    assert capsys.readouterr().err == "one is over\n"

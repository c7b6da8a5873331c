"""Tables and JSON on stdout."""

from __future__ import annotations

import json
import re
import sys

import pytest

from orchestrator.cli.output import print_json, print_table


def test_a_table_is_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "what it is"), [("a", 1), ("longer", "two words")])
    assert capsys.readouterr().out == "name    what it is\na       1\nlonger  two words\n"


def test_a_table_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "x"), [])
    assert capsys.readouterr().out == "name  x\n"


def test_a_table_on_a_terminal_takes_text_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    print_table(("name", "type"), [("a", "list[int]")])
    out = capsys.readouterr().out
    assert "list[int]" in out
    assert "\x1b[3" not in out


@pytest.mark.parametrize("width", [50, 80])
def test_what_does_not_fit_a_terminal_goes_on_below_and_is_never_cut(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    names = ["trial", *(f"column-{number}" for number in range(12))]
    rows = [[f"trial-{row}", *(f"value-{row}-{number}" for number in range(12))] for row in range(2)]
    print_table(names, rows)
    lines = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert {*names, *rows[0], *rows[1]} <= {*words}
    assert words.count("trial-0") == words.count("trial") == words.count("trial-1") > 1, (
        "the first column begins each part"
    )


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1, None]})
    assert json.loads(capsys.readouterr().out) == {"a": [1, None]}

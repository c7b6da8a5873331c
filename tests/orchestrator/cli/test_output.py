"""Tables and JSON on stdout."""

from __future__ import annotations

import json

import pytest

from orchestrator.cli.output import print_json, print_table


def test_a_table_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "what it is"), [("a", 1), ("longer", "two words")])
    assert capsys.readouterr().out == "name    what it is\na       1\nlonger  two words\n"


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1, None]})
    assert json.loads(capsys.readouterr().out) == {"a": [1, None]}

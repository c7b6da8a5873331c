"""Seals of JSON: any reader reads it, and whatever is changed in it is seen."""

from __future__ import annotations

import json

import pytest

from orchestrator.storage import Storage
from orchestrator.storage.stored_data import is_whole, mapping, parsed, read_json, sealed, whole_lines

ENTRIES = {"value": 0.25, "step": 12, "word": 'é"}\n', "inner": {"crc": 1}}


@pytest.mark.parametrize("indent", [None, 1])
def test_whichever_digit_is_changed_it_is_seen(indent: int | None) -> None:
    text = sealed(json.dumps(ENTRIES, indent=indent)).encode()
    assert list(json.loads(text)) == [*ENTRIES, "crc"]
    assert parsed(text) == ENTRIES
    assert is_whole(text)
    assert is_whole(text + b"\n")
    digits = [place for place, byte in enumerate(text) if chr(byte).isdigit()]
    for place in digits:
        assert is_whole(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :]) is False
    assert is_whole(json.dumps(ENTRIES).encode()) is None


def test_a_file_that_was_changed_is_read_with_a_word(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    storage = Storage(str(tmp_path))
    storage.write("run.json", sealed(json.dumps(ENTRIES)).replace("12", "13"))
    for _ in range(2):
        assert read_json(storage, "run.json", mapping, "")["step"] == 13
    assert caplog.text.count(f"{storage}/run.json was changed after it was written: its checksum does not hold") == 1


def test_a_line_whose_number_was_changed_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    lines = [sealed(json.dumps({"step": step})) for step in (1, 2, 3)]
    data = "\n".join(lines).replace('"step": 2', '"step": 7').encode()
    assert whole_lines(data, "metrics.jsonl", mapping) == [{"step": 1}, {"step": 3}]
    assert "metrics.jsonl is damaged: line 2 is left out: its checksum does not hold" in caplog.text

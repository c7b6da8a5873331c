"""Seals of JSON: any reader reads it, and whatever is changed in it is seen."""

from __future__ import annotations

import json
from itertools import product

import pytest

from orchestrator.storage import Storage
from orchestrator.storage.stored_data import hearing, is_whole, mapping, parsed, read_json, sealed, whole_lines

ENTRIES = {"value": 0.25, "step": 12, "word": 'é"}\n', "inner": {"crc": 1}}


def _is_json(data: bytes) -> bool:
    try:
        parsed(data)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("indent", [None, 1])
def test_whichever_bit_is_changed_it_is_seen(indent: int | None) -> None:
    text = sealed(json.dumps(ENTRIES, indent=indent)).encode()
    assert list(json.loads(text)) == [*ENTRIES, "crc"]
    assert parsed(text) == ENTRIES
    assert is_whole(text)
    assert is_whole(text + b"\n")
    for place, bit in product(range(len(text)), range(8)):
        harmed = text[:place] + bytes([text[place] ^ 1 << bit]) + text[place + 1 :]
        assert is_whole(harmed) is False or not _is_json(harmed), harmed
    assert is_whole(json.dumps(ENTRIES).encode()) is None


def test_a_file_that_was_changed_is_read_with_a_word(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    storage = Storage(str(tmp_path))
    storage.write("run.json", sealed(json.dumps(ENTRIES)).replace("12", "13"))
    for _ in range(2):
        assert read_json(storage, "run.json", mapping, "")["step"] == 13
    assert caplog.text.count(f"{storage}/run.json was changed after it was written: its checksum does not hold") == 1


def test_whichever_bit_of_a_line_is_changed_it_is_said_and_where_it_is_cut_it_is_not() -> None:
    line = sealed(json.dumps(ENTRIES)).encode()
    for place, bit in product(range(len(line)), range(8)):
        harmed = line[:place] + bytes([line[place] ^ 1 << bit]) + line[place + 1 :]
        with hearing() as heard:
            assert whole_lines(harmed, "metrics.jsonl", mapping) == []
        assert heard, harmed
    for place in range(len(line)):
        with hearing() as heard:
            assert whole_lines(line[:place], "metrics.jsonl", mapping) == []
        assert heard == []


def test_a_line_whose_number_was_changed_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    lines = [sealed(json.dumps({"step": step})) for step in (1, 2, 3)]
    data = "\n".join(lines).replace('"step": 2', '"step": 7').encode()
    assert whole_lines(data, "metrics.jsonl", mapping) == [{"step": 1}, {"step": 3}]
    assert "metrics.jsonl is damaged: line 2 is left out: its checksum does not hold" in caplog.text


@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_line_counts_once_whatever_part_of_the_file_was_copied(count: int) -> None:
    lines = [sealed(json.dumps({"step": step})).encode() + b"\n" for step in range(count)]
    whole, wanted = b"".join(lines), [{"step": step} for step in range(count)]
    for begin in range(count):
        for end in range(begin + 1, count + 1):
            with hearing() as heard:
                assert whole_lines(whole + b"".join(lines[begin:end]), "x.jsonl", mapping) == wanted
            assert len(heard) == 1
            assert "a copy of an earlier line" in heard[0]
    with hearing() as heard:
        assert whole_lines(whole, "x.jsonl", mapping) == wanted
    assert heard == []

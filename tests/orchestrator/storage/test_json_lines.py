"""Lines of JSON: any reader reads them, and changes of their content are detected."""

import json
import logging
from itertools import product
from pathlib import Path

import pytest

from orchestrator.disk.checkpoints.manifest import FileEntry
from orchestrator.storage import Storage
from orchestrator.storage.json_lines import append_line, format_line, parse_lines, read_lines
from orchestrator.storage.omissions import collecting_omissions
from orchestrator.storage.validation import check_mapping

ENTRIES = {"value": 0.25, "step": 12, "word": 'é"}\n', "inner": {"crc": 1}}


def flips(data: bytes) -> list[bytes]:
    """Return the data with each of its bits flipped in turn."""
    return [
        data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
        for place, bit in product(range(len(data)), range(8))
    ]


def make_line() -> bytes:
    """Return the line of ENTRIES, without its end."""
    return format_line(ENTRIES).removesuffix("\n").encode()


@pytest.mark.parametrize("line", [make_line(), json.dumps(ENTRIES).encode()])
def test_a_line_is_plain_json_with_or_without_its_checksum(line: bytes) -> None:
    without_checksum = {name: value for name, value in json.loads(line).items() if name != "crc"}
    assert without_checksum == ENTRIES
    with collecting_omissions() as omissions:
        assert parse_lines(line, "metrics.jsonl", check_mapping) == [ENTRIES]
    assert omissions == []


def test_a_line_with_a_changed_bit_is_left_out_with_a_warning_and_one_cut_short_without() -> None:
    line = make_line()
    for changed in flips(line):
        with collecting_omissions() as omissions:
            lines = line + b"\n" + changed + b"\n" + line + b"\n"
            assert parse_lines(lines, "metrics.jsonl", check_mapping) == [ENTRIES] * 2
        assert omissions, changed
    for length in range(len(line)):
        with collecting_omissions() as omissions:
            assert parse_lines(line[:length], "metrics.jsonl", check_mapping) == []
        assert omissions == [] or line[length - 1 : length] == b"}"


def test_an_invalid_line_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Storage(tmp_path)
    assert read_lines(storage, "files.jsonl", FileEntry) == []
    for entries in (
        {"sha256": "a", "bytes": 1},
        {"sha256": "b", "bytes": "2"},
        {"sha256": "c", "bytes": 3},
    ):
        append_line(storage, "files.jsonl", entries)
    assert read_lines(storage, "files.jsonl", FileEntry) == [FileEntry("a", 1), FileEntry("c", 3)]
    place = f"{storage}/files.jsonl is damaged: line 2 is left out"
    message = f"{place}: `bytes`: input should be a valid integer, got '2'"
    assert caplog.record_tuples == [("hookyard", logging.WARNING, message)]


def test_line_with_a_changed_closing_brace_is_damaged_and_not_cut_short() -> None:
    line = make_line()
    with collecting_omissions() as omissions:
        assert parse_lines(line[:-1] + b"|\n" + line + b"\n", "lines", check_mapping) == [ENTRIES]
    assert len(omissions) == 1
    with collecting_omissions() as omissions:
        assert parse_lines(line[:-1] + b"\n" + line + b"\n", "lines", check_mapping) == [ENTRIES]
    assert omissions == []

"""Checksums of rows: whichever bit of a file is flipped, no number comes out that was not written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.errors import DamagedFile
from orchestrator.stats.read.reading import read_batches, recorded
from orchestrator.stats.read.recorded_files import recorded_files
from orchestrator.stats.write.checksums import END, schema_in, verify_parquet, whole_batches
from orchestrator.stats.write.compaction import compact
from orchestrator.stats.write.rank_files import RankFiles
from orchestrator.stats.write.segments import pack
from orchestrator.storage import Storage


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    files = RankFiles(Storage(tmp_path), "rank=0", {"rank": 0}, 30.0)
    for batch in range(2):
        files.write("rows", {"loss": pa.array([0.5 + batch, 0.25]), "word": pa.array(["a", None])}, 2)
    files.close()
    return (tmp_path / "rank=0/rows-00000.arrow").read_bytes()


def losses(data: bytes) -> list[list[float]]:
    return [batch["loss"].to_pylist() for batch in read_batches(data) if batch.schema.names == ["rank", "loss", "word"]]


def test_any_reader_reads_a_stream_with_checksums(data: bytes) -> None:
    assert pa.ipc.open_stream(data).read_all()["loss"].to_pylist() == [0.5, 0.25, 1.5, 0.25]
    assert losses(data) == [[0.5, 0.25], [1.5, 0.25]]


def test_a_flipped_bit_leaves_rows_out_and_changes_none(data: bytes) -> None:
    allowed = ([[0.5, 0.25], [1.5, 0.25]], [[0.5, 0.25]], [[1.5, 0.25]], [])
    for place in range(0, len(data) - 8, 3):
        flipped = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        assert losses(flipped) in allowed, place


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank=0/rows-00000.arrow"
    path.write_bytes(data[:100])
    with Storage(tmp_path).open("rank=0/rows-00000.arrow") as stream:
        path.write_bytes(data)
        schema = schema_in(stream, path.name)
        batches = whole_batches(stream, schema, path.name)
        assert [next(batches)["loss"].to_pylist() for _ in range(2)] == [[0.5, 0.25], [1.5, 0.25]]
        with pytest.raises(EOFError):
            next(batches)


def test_what_is_left_out_is_said(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    place = data.rindex(b"\x00\x00\x00\x00\x00\x00\xf8\x3f")  # 1.5
    assert read_batches(data[:place] + b"\x01" + data[place + 1 :], "rows-00000.arrow")[0]["loss"].to_pylist() == [
        0.5,
        0.25,
    ]
    assert "rows-00000.arrow is damaged: the rows in bytes" in caplog.text
    assert "their checksum does not hold" in caplog.text


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    """The joined table of a run of two rows."""
    storage = Storage(tmp_path)
    files = RankFiles(storage, "stats/attempt=0/rank=0", {"rank": 0, "node": "here", "attempt": 0}, 30.0)
    place = {name: pa.array([1, 2]) for name in ("epoch", "iteration", "step", "samples")}
    files.write("rows", {"phase": pa.array(["train", "train"]), **place, "loss": pa.array([0.123456789, 0.25])}, 2)
    files.close()
    compact(storage, [])
    return tmp_path / "stats.parquet"


def test_whichever_byte_of_a_joined_table_is_changed_it_is_told_or_no_number_differs(
    joined: Path, tmp_path: Path
) -> None:
    data, rows, told = joined.read_bytes(), recorded(Storage(tmp_path), "rows").read(), 0
    for place in range(0, len(data), 11):
        joined.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            assert recorded(Storage(tmp_path), "rows").read().equals(rows), place
        except DamagedFile:
            told += 1
    assert told > len(data) // 22  # half of them, where a pyarrow writes more that nobody reads


@pytest.mark.parametrize("length", [0, 3, 8, 100, -1, -9])
def test_a_joined_table_that_was_cut_is_told(joined: Path, tmp_path: Path, length: int) -> None:
    joined.write_bytes(joined.read_bytes()[:length])
    with pytest.raises(
        DamagedFile,
        match=r"stats\.parquet is damaged: it is not a Parquet file, or its end is missing\. Put back a copy",
    ):
        recorded(Storage(tmp_path), "rows").read()


def test_any_reader_reads_a_joined_table_and_ours_one_without_a_checksum(joined: Path, tmp_path: Path) -> None:
    rows = pq.read_table(joined)
    assert rows["loss"].to_pylist() == [0.123456789, 0.25]
    assert b"HYcr" in joined.read_bytes()[-16:-8]
    pq.write_table(rows, joined)
    assert recorded(Storage(tmp_path), "rows").read()["loss"].to_pylist() == [0.123456789, 0.25]


def test_what_a_kill_cut_short_is_no_damage_and_what_no_kill_makes_is(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [place for place in range(len(data) - 8) if data.startswith(END[:4], place)]
    first, second = messages[1:3]
    for length in range(second, len(data)):
        assert losses(data[:length]) in ([[0.5, 0.25]], [[0.5, 0.25], [1.5, 0.25]])
    assert caplog.text == ""
    for place in (
        first,
        first + 4,
        first + 5,
        first + 7,
        first + 40,
    ):  # what frames the first batch, or tells its length
        caplog.clear()
        assert losses(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]) == [[1.5, 0.25]]
        assert f"the rows in bytes {first} to {second} are left out" in caplog.text
    for harmed in (
        data[: second + 4] + b"\x00\x10" + data[second + 6 :],
        data[:second] + END + data[second + 8 :],
        data + b"more",
    ):
        caplog.clear()
        assert losses(harmed)[0] == [0.5, 0.25]
        assert "are left out" in caplog.text


def test_a_damaged_beginning_is_said_and_one_that_was_cut_is_not(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    batch = data.index(END[:4], 1)
    for length in range(batch):
        assert losses(data[:length]) == []
    assert caplog.text == ""
    for place in (0, 4, 6, 20, batch - 2):
        caplog.clear()
        assert losses(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]) == []
        assert "all of its rows are left out" in caplog.text


def test_a_stream_that_is_over_has_its_end(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    for cut in (data, data[:-8], data[:-9]):
        stream = pa.BufferReader(cut)
        begun = schema_in(stream, "rows")
        assert begun is not None
        with pytest.raises(EOFError):
            list(whole_batches(stream, begun, "rows", is_over=True))
        assert ("rows is damaged: it was cut short" in caplog.text) == (cut is not data)


def test_rows_count_once_whatever_part_of_a_stream_was_copied(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    begins = [place for place in range(len(data) - 8) if data.startswith(END[:4], place)]
    messages = [data[begin:end] for begin, end in zip(begins, [*begins[1:], len(data) - 8], strict=True)]
    body = data[:-8]
    for copied in (messages[1], messages[2], b"".join(messages[1:]), body, data):
        for stream in (body, data):
            caplog.clear()
            assert losses(stream + copied)[:2] == [[0.5, 0.25], [1.5, 0.25]]
            assert len(losses(stream + copied)) == 2
            assert "are left out" in caplog.text


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize("to", ["rank=0/rows-00001", "rank=1/rows-00000", "rank=1/rows-00003"])
def test_a_file_of_rows_copied_to_another_name_is_named_and_counts_no_row_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, to: str
) -> None:
    storage, own = Storage(tmp_path), "stats/attempt=0/rank=0"
    files = RankFiles(storage, own, {"rank": 0, "node": "here", "attempt": 0}, 30.0)
    files.write("rows", {"phase": pa.array(["train"] * 2), "iteration": pa.array([1, 2])}, 2)
    files.close()
    if kind == "parquet":
        pack(storage, recorded_files(storage, "rows").parts)
    rows = recorded(storage, "rows").read()
    copy = tmp_path / f"stats/attempt=0/{to}.{kind}"
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes((tmp_path / own / f"rows-00000.{kind}").read_bytes())
    if kind == "arrow":
        assert recorded(storage, "rows").read().equals(rows)
        assert f"{copy} is damaged: all of its rows are left out: it is a copy" in caplog.text
        return
    with pytest.raises(DamagedFile, match=f"{to}.parquet is damaged: it is a copy of another file.* Remove it"):
        recorded(storage, "rows").read()


def test_a_joined_table_that_was_doubled_is_told_by_its_check(joined: Path, tmp_path: Path) -> None:
    data, rows = joined.read_bytes(), recorded(Storage(tmp_path), "rows").read()
    with joined.open("rb") as file:
        assert verify_parquet(file, joined.name)
    joined.write_bytes(data + data)
    assert recorded(Storage(tmp_path), "rows").read().equals(rows)
    with joined.open("rb") as file, pytest.raises(pa.ArrowInvalid, match="a second copy of itself"):
        verify_parquet(file, joined.name)

"""Checksums of rows: whichever bit of a file is flipped, no number comes out that was not
written."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.disk.rows.checksums import (
    END_OF_STREAM,
    LENGTH_SIZE,
    make_stream_start,
    read_stream,
)
from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.rows.dataset import open_recorded
from orchestrator.disk.rows.rank_files import RankFiles
from orchestrator.errors import DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import collecting_omissions


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    files = RankFiles(Storage(tmp_path), "rank=0", {"rank": 0}, 30.0)
    for batch in range(2):
        files.write(
            "rows", {"loss": pa.array([0.5 + batch, 0.25]), "word": pa.array(["a", None])}, 2
        )
    files.close()
    return (tmp_path / "rank=0/rows-00000.arrow").read_bytes()


def losses(data: bytes) -> list[list[float]]:
    batches = read_stream(data, "a stream").batches
    return [
        batch["loss"].to_pylist()
        for batch in batches
        if batch.schema.names == ["rank", "loss", "word"]
    ]


def test_any_reader_reads_a_stream_with_checksums(data: bytes) -> None:
    assert pa.ipc.open_stream(data).read_all()["loss"].to_pylist() == [0.5, 0.25, 1.5, 0.25]
    assert losses(data) == [[0.5, 0.25], [1.5, 0.25]]


def test_flipped_bit_omits_rows_and_changes_none(data: bytes) -> None:
    allowed = ([[0.5, 0.25], [1.5, 0.25]], [[0.5, 0.25]], [])
    for place in range(0, len(data) - 8, 3):
        flipped = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        assert losses(flipped) in allowed, place


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    """The joined table of a run of two rows."""
    storage = Storage(tmp_path)
    files = RankFiles(
        storage, "stats/attempt=0/rank=0", {"rank": 0, "node": "here", "attempt": 0}, 30.0
    )
    place = {name: pa.array([1, 2]) for name in ("epoch", "iteration", "step", "samples")}
    files.write(
        "rows",
        {"phase": pa.array(["train", "train"]), **place, "loss": pa.array([0.123456789, 0.25])},
        2,
    )
    files.close()
    compact(storage, [])
    return tmp_path / "stats.parquet"


def test_changed_byte_of_a_joined_table_is_reported_or_harmless(
    joined: Path, tmp_path: Path
) -> None:
    data, rows, told = joined.read_bytes(), open_recorded(Storage(tmp_path), "rows").read(), 0
    for place in range(0, len(data), 11):
        joined.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            assert open_recorded(Storage(tmp_path), "rows").read().equals(rows), place
        except DamagedFile:
            told += 1
    assert told > len(data) // 22  # half of them, where a pyarrow writes more that nobody reads


@pytest.mark.parametrize("length", [0, 3, 8, 100, -1, -9])
def test_truncated_joined_table_is_reported(joined: Path, tmp_path: Path, length: int) -> None:
    joined.write_bytes(joined.read_bytes()[:length])
    with pytest.raises(
        DamagedFile,
        match=r"stats\.parquet is damaged: it is not a Parquet file, or its end is missing\. Put back a copy",
    ):
        open_recorded(Storage(tmp_path), "rows").read()


def test_joined_tables_are_plain_parquet_with_or_without_checksum(
    joined: Path, tmp_path: Path
) -> None:
    rows = pq.read_table(joined)
    assert rows["loss"].to_pylist() == [0.123456789, 0.25]
    assert b"HYcr" in joined.read_bytes()[-16:-8]
    pq.write_table(rows, joined)
    assert open_recorded(Storage(tmp_path), "rows").read()["loss"].to_pylist() == [
        0.123456789,
        0.25,
    ]


def test_stream_is_damaged_only_if_it_is_shorter_than_at_the_last_sync(tmp_path: Path) -> None:
    files, path = (
        RankFiles(Storage(tmp_path), "rank=0", {"rank": 0}, 30.0),
        tmp_path / "rank=0/rows-00000.arrow",
    )
    sizes = []
    for batch in range(3):
        files.write("rows", {"loss": pa.array([float(batch)])}, 1)
        sizes.append(path.stat().st_size)
        if batch == 1:
            files.sync()
    data = path.read_bytes()
    for length in range(len(data)):
        with collecting_omissions() as omissions:
            losses = [
                batch["loss"].to_pylist() for batch in read_stream(data[:length], "rows").batches
            ]
        assert losses == [[0.0], [1.0], [2.0]][: sum(length >= size for size in sizes)]
        assert len(omissions) == (length < sizes[1])
    files.close()


def test_damaged_length_loses_no_rows(data: bytes) -> None:
    end = data.index(END_OF_STREAM[:4], 1)
    for place in range(end - LENGTH_SIZE, end):
        with collecting_omissions() as omissions:
            assert losses(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) == [
                [0.5, 0.25],
                [1.5, 0.25],
            ]
        assert len(omissions) == 1


def test_length_of_a_stream_lies_within_one_page() -> None:
    ends = [
        len(make_stream_start(pa.schema([("x" * length, pa.int64())])))
        for length in range(3600, 4100, 8)
    ]
    assert all((end - LENGTH_SIZE) // 4096 == (end - 1) // 4096 for end in ends)


def test_damaged_batch_ends_the_stream_and_is_reported(data: bytes) -> None:
    _, first, second = (
        place for place in range(len(data) - 8) if data.startswith(END_OF_STREAM[:4], place)
    )
    for place in (
        first,
        first + 4,
        first + 5,
        first + 7,
        first + 40,
        second,
        second + 4,
        data.rindex(b"\xf8\x3f"),
    ):
        begin = first if place < second else second
        damaged = data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]
        with collecting_omissions() as omissions:
            assert losses(damaged) == [[0.5, 0.25]][: begin == second]
        assert f"the rows after byte {begin} are left out" in omissions[0]

"""The files of rows: any reader reads them, and what cannot be read is named."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.rows.file_format import END_OF_STREAM, read_stream
from orchestrator.disk.rows.rank_files import RankFiles
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.errors import DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.omissions import collecting_omissions


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    """An Arrow stream of two batches."""
    files = RankFiles(Storage(tmp_path), "rank=0", {"rank": 0}, 30.0)
    for batch in range(2):
        columns = {"loss": pa.array([0.5 + batch, 0.25]), "word": pa.array(["a", None])}
        files.write("rows", columns, 2)
    files.close()
    return (tmp_path / "rank=0/rows-00000.arrow").read_bytes()


def losses(data: bytes) -> list[list[float]]:
    return [batch["loss"].to_pylist() for batch in read_stream(data, "a stream").batches]


def find_batches(data: bytes) -> tuple[int, int]:
    """Return where the messages of the two batches begin."""
    begins = [place for place in range(len(data) - 8) if data.startswith(END_OF_STREAM[:4], place)]
    return begins[1], begins[2]


def test_any_reader_reads_a_stream(data: bytes) -> None:
    assert pa.ipc.open_stream(data).read_all()["loss"].to_pylist() == [0.5, 0.25, 1.5, 0.25]
    assert losses(data) == [[0.5, 0.25], [1.5, 0.25]]


def test_a_stream_that_a_kill_cut_short_is_read_to_its_last_whole_batch(data: bytes) -> None:
    first, second = find_batches(data)
    end = len(data) - len(END_OF_STREAM)
    for length in range(first, len(data)):
        with collecting_omissions() as omissions:
            complete = sum(length >= place for place in (second, end))
            assert losses(data[:length]) == [[0.5, 0.25], [1.5, 0.25]][:complete]
        assert omissions == []


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_stream_without_its_beginning_is_reported(data: bytes, length: int) -> None:
    with collecting_omissions() as omissions:
        assert losses(data[:length]) == []
    assert omissions == ["all of its rows are left out: its beginning cannot be read"]


def test_a_batch_that_cannot_be_read_ends_the_stream_and_is_reported(data: bytes) -> None:
    first, second = find_batches(data)
    for begin in (first, second):
        damaged = data[: begin + 8] + b"\xff" * 40 + data[begin + 48 :]
        with collecting_omissions() as omissions:
            assert losses(damaged) == [[0.5, 0.25]][: begin == second]
        assert omissions == [f"the rows after byte {begin} are left out: they cannot be read"]


def test_a_flipped_bit_raises_no_error(data: bytes) -> None:
    for place in range(0, len(data), 3):
        flipped = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        with collecting_omissions():
            for batch in read_stream(flipped, "a stream").batches:
                assert batch.num_rows == len(batch.to_pylist())


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    """The compacted table of a run of two rows."""
    storage = Storage(tmp_path)
    identity = {"rank": 0, "node": "here", "attempt": 0}
    files = RankFiles(storage, "stats/attempt=0/rank=0", identity, 30.0)
    columns = {name: pa.array([1, 2]) for name in ("epoch", "iteration", "step", "samples")}
    columns["phase"] = pa.array(["train", "train"])
    columns["loss"] = pa.array([0.123456789, 0.25])
    files.write("rows", columns, 2)
    files.close()
    compact(storage, [])
    return tmp_path / "stats.parquet"


def test_a_changed_value_of_a_parquet_file_is_reported(joined: Path, tmp_path: Path) -> None:
    metadata = pq.read_metadata(joined)
    names = metadata.schema.names
    column = metadata.row_group(0).column(names.index("loss"))
    end = column.data_page_offset + column.total_compressed_size
    data = bytearray(joined.read_bytes())
    data[end - 1] ^= 1
    joined.write_bytes(data)
    with pytest.raises(DamagedFile, match=r"stats\.parquet is damaged: .*(CRC|crc)"):
        open_recorded(Storage(tmp_path), "rows").read()


@pytest.mark.parametrize("length", [0, 3, 8, 100, -1, -9])
def test_truncated_parquet_file_is_reported(joined: Path, tmp_path: Path, length: int) -> None:
    joined.write_bytes(joined.read_bytes()[:length])
    with pytest.raises(DamagedFile, match=r"stats\.parquet is damaged: .*Put back a copy"):
        open_recorded(Storage(tmp_path), "rows").read()


def test_parquet_files_of_other_writers_are_read(joined: Path, tmp_path: Path) -> None:
    rows = pq.read_table(joined)
    pq.write_table(rows, joined)
    stored = open_recorded(Storage(tmp_path), "rows").read()
    assert stored["loss"].to_pylist() == [0.123456789, 0.25]

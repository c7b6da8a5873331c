"""Tables on stdout and in files."""

import csv
import json
import os
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO, StringIO
from pathlib import Path
from stat import S_IMODE
from typing import Any, NamedTuple
from uuid import uuid4

import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.cli.output import format_json
from orchestrator.cli.table_output import TableOutput
from orchestrator.disk.new_run import create_run
from orchestrator.errors import UsageError
from orchestrator.storage import Storage
from tests.orchestrator.tables.test_frames import FRESH, record, row


class Problem(NamedTuple):
    text: str
    line: int


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two ranks; an iteration takes as many seconds as its number, and half as much again on rank
    1."""
    folder = create_run(tmp_path_factory.mktemp("runs"), "made", "hooks: {}\n")
    steps = [
        row(
            0,
            "train",
            n // 3,
            n,
            n,
            rank,
            step_s=n * (1 + rank / 2),
            data_wait_s=0.25 * n,
            loss=float("nan") if n == 4 else 1.0 / n,
        )
        for rank in (0, 1)
        for n in range(1, 6)
    ]
    record(Storage(str(folder)), [*steps, row(0, "val", 1, 1, 5, accuracy=0.5)])
    folder.storage.write("stats/attempt=0/attempt.json", json.dumps(asdict(FRESH)))
    return str(folder)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["stats", *arguments])


def test_csv_to_stdout_and_to_a_file(run: str, tmp_path: Path) -> None:
    arguments = [
        run,
        "--by",
        "row",
        "--columns",
        "rank,iteration,step_s",
        "--where",
        "iteration == 2",
    ]
    printed = call(*arguments, "--format", "csv").stdout
    assert list(csv.reader(StringIO(printed))) == [
        ["rank", "iteration", "step_s"],
        ["0", "2", "2.0"],
        ["1", "2", "3.0"],
    ]
    assert call(*arguments, "--format", "csv", "--output", str(tmp_path / "rows.csv")).stdout == ""
    assert (tmp_path / "rows.csv").read_text() == printed


def test_parquet_to_a_file(run: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    arguments = [
        run,
        "--by",
        "row",
        "--columns",
        "step_s",
        "--where",
        "rank == 0 and phase == 'train'",
    ]
    done = call(*arguments, "--format", "parquet", "--output", str(file))
    assert done.exit_code == 0, done.output
    assert pd.read_parquet(file)["step_s"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_output_may_be_a_url(run: str, form: str) -> None:
    place = f"memory://{uuid4().hex}"
    arguments = [
        run,
        "--by",
        "row",
        "--columns",
        "step_s",
        "--where",
        "rank == 0 and phase == 'train'",
    ]
    done = call(*arguments, "--format", form, "--output", f"{place}/rows.{form}")
    assert done.exit_code == 0, done.output
    content = BytesIO(Storage(place).read(f"rows.{form}"))
    table = {"csv": pd.read_csv, "json": pd.read_json, "parquet": pd.read_parquet}[form](content)
    assert table["step_s"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_output_that_ends_in_a_slash_is_a_folder(run: str, tmp_path: Path) -> None:
    refused = call(run, "--format", "csv", "--output", f"{tmp_path}/new/")
    assert refused.exit_code == 2
    assert f"--output {tmp_path}/new/ is a folder; give a file name" in refused.output


def test_json_shows_a_name_that_is_no_utf_8() -> None:
    name = os.fsdecode(b"plot-\xff.png")
    printed = format_json(
        {"file": name, "loss": float("nan"), "error": Problem("line 1\nline 2", 3)}
    )
    assert json.loads(printed) == {
        "file": "plot-\\udcff.png",
        "loss": None,
        "error": ["line 1\nline 2", 3],
    }


@pytest.mark.parametrize("place", ["folder", "bucket"])
@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zip", "GZ"])
def test_csv_is_compressed_by_the_ending_of_its_name(
    place: str, ending: str, tmp_path: Path
) -> None:
    storage = Storage(tmp_path if place == "folder" else f"memory://{uuid4().hex}")
    table = pd.DataFrame(
        {"file": [os.fsdecode(b"plot-\xff.png"), "b"], "loss": [0.1, 0.2]}, dtype=object
    )
    TableOutput("csv", f"{storage}/rows.csv.{ending}").write_data(table)
    content = storage.read(f"rows.csv.{ending}")
    starts = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ", "zip": b"PK"}
    assert content.startswith(starts[ending.lower()])
    compression: Any = {"gz": "gzip"}.get(ending.lower(), ending)
    assert pd.read_csv(BytesIO(content), compression=compression).values.tolist() == [
        ["plot-\\udcff.png", 0.1],
        ["b", 0.2],
    ]


def test_missing_package_of_a_compression_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    output = TableOutput("csv", f"{tmp_path}/rows.csv.zst")
    with pytest.raises(UsageError, match=r"cannot write .*rows\.csv\.zst: .*zstandard"):
        output.write_data(pd.DataFrame({"loss": [0.1]}))


def test_earlier_file_stays_if_a_table_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    file.write_bytes(b"the earlier one")
    mixed = pd.DataFrame({"value": pd.Series([{"a": 1}, "text", 3], dtype=object)})
    with pytest.raises(pa.ArrowInvalid):
        TableOutput("parquet", str(file)).write_data(mixed)
    assert [file] == list(tmp_path.iterdir())
    assert file.read_bytes() == b"the earlier one"


def test_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.touch(mode=0o600)
    TableOutput("csv", str(file)).write_data(pd.DataFrame({"a": [1]}))
    assert file.read_text() == "a\n1\n"
    assert S_IMODE(file.stat().st_mode) == 0o600


def test_output_may_be_a_device() -> None:
    TableOutput("csv", os.devnull).write_data(pd.DataFrame({"a": [1]}))
    assert not Path(os.devnull).is_file()


def test_output_may_be_a_pipe() -> None:
    """As /dev/stdout before a pipe, and as the shell's >(command)."""
    reading, writing = os.pipe()
    TableOutput("csv", f"/dev/fd/{writing}").write_data(pd.DataFrame({"a": [1, 2]}))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "a\n1\n2\n"


def test_json_is_not_written_under_the_name_of_a_compressed_file() -> None:
    with pytest.raises(UsageError, match=r"rows\.json\.gz would not be compressed"):
        TableOutput.from_flags("json", "rows.json.gz", as_json=False)


LARGE = pd.DataFrame({f"text-{number}": ["x" * 59] * 100_000 for number in range(5)})
"""The text of this table takes 30 MB."""
LARGE_BYTES = 100_001 * 5 * 60 - 5 * (59 - len("text-0"))


def measure_peak(call: Callable[[], object]) -> int:
    """Return how many bytes a call takes at most."""
    tracemalloc.start()
    try:
        call()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak_bytes


def test_csv_is_written_in_pieces(tmp_path: Path) -> None:
    TableOutput("csv", str(tmp_path / "small.csv")).write_data(LARGE[:1])
    output = TableOutput("csv", str(tmp_path / "rows.csv"))
    assert measure_peak(lambda: output.write_data(LARGE)) < 20_000_000
    assert (tmp_path / "rows.csv").stat().st_size == LARGE_BYTES


def test_csv_is_printed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "rows.csv").open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        TableOutput("csv", None).write_data(LARGE[:0])
        assert measure_peak(lambda: TableOutput("csv", None).write_data(LARGE)) < 20_000_000
    header, printed = (tmp_path / "rows.csv").read_text().split("\n", 1)
    assert header == "text-0,text-1,text-2,text-3,text-4", "also of a table without rows"
    assert len(printed) == LARGE_BYTES

"""Reading predictions from a folder that is not as their writer left it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.disk.predictions import PredictionWriter, read_predictions
from orchestrator.errors import DamagedFile, NewerFormat, UsageError
from orchestrator.storage import Storage


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """The file of two predictions."""
    writer = PredictionWriter(Storage(tmp_path))
    writer.add(pa.table({"index": [0, 1], "label": [7, 8]}))
    writer.flush()
    return tmp_path / "part-000000000000.parquet"


def test_predictions_are_read_as_they_were_written(part: Path) -> None:
    frame = read_predictions(Storage(part.parent))
    assert frame["label"].to_dict() == {0: 7, 1: 8}


def test_part_of_a_newer_format_is_refused(part: Path) -> None:
    table = pq.read_table(part).replace_schema_metadata({"hookyard.format": "99"})
    pq.write_table(table, part)
    with pytest.raises(NewerFormat, match=part.name):
        read_predictions(Storage(part.parent))


def test_damaged_part_is_named(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match=f"{part.name}.*predict again"):
        read_predictions(Storage(part.parent))


@pytest.mark.parametrize("name", ["", "missing"])
def test_folder_without_predictions_is_named(tmp_path: Path, name: str) -> None:
    folder = Storage(tmp_path / name)
    with pytest.raises(UsageError, match=f"no predictions in {folder};"):
        read_predictions(folder)

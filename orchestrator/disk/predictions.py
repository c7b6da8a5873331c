"""Predictions of a dataset as Parquet files, one for each rank and part of its samples."""

from typing import Any

import pyarrow as pa

from orchestrator.disk.rows.file_format import write_parquet
from orchestrator.disk.rows.recorded_files import open_parquet
from orchestrator.errors import UsageError
from orchestrator.storage import Storage

INDEX = "index"
"""Column with the index of the sample in its dataset."""
_PART_BYTES = 64 * 2**20


class PredictionWriter:
    """Writer of one rank's predictions, which come in the order of the dataset.

    A file is written as soon as its samples fill it, and named after the first of them. If each
    rank writes consecutive samples, the files in the order of their names hold the dataset's order.
    """

    def __init__(self, folder: Storage) -> None:
        self._folder = folder
        self._tables: list[pa.Table] = []
        self._bytes = 0

    def add(self, table: pa.Table) -> None:
        """Add the samples of a batch, with the columns and types of earlier ones."""
        self._tables.append(table)
        self._bytes += table.nbytes
        if self._bytes >= _PART_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the samples that are in no file yet."""
        if not self._tables:
            return
        table = pa.concat_tables(self._tables)
        first = table[INDEX][0].as_py()
        with self._folder.create(f"part-{first:012d}.parquet") as file:
            write_parquet(table, file)
        self._tables = []
        self._bytes = 0


def read_predictions(folder: Storage) -> Any:
    """Return all predictions as a DataFrame, by the index of the sample. Raises UsageError if there
    are none, DamagedFile and NewerFormat."""
    tables = []
    for name in folder.names():
        if not name.endswith(".parquet"):
            continue
        with open_parquet(folder, name, advice="Put back a copy of it, or predict again") as file:
            tables.append(file.read())
    if not tables:
        raise UsageError(f"there are no predictions in {folder}; predict again")
    return pa.concat_tables(tables).to_pandas().set_index(INDEX)

"""A dataset of recorded rows: only what a question needs is read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from orchestrator.disk.rows.recorded_files import ADVICE
from orchestrator.errors import DamagedFile, UsageError


@dataclass(frozen=True)
class Source:
    """A dataset, and a pyarrow filter for its rows; None keeps all rows."""

    data: ds.Dataset
    condition: Any = None

    @property
    def schema(self) -> pa.Schema:
        schema: pa.Schema = self.data.schema
        return schema

    @property
    def has_rows(self) -> bool:
        """False if nothing was recorded; no column has a type then."""
        return any(not pa.types.is_null(field.type) for field in self.schema)

    @property
    def rows(self) -> ds.Dataset:
        return self.data if self.condition is None else self.data.filter(self.condition)

    def count_rows(self) -> int:
        """Return the number of rows. Raises DamagedFile."""
        with self.raising_damaged_file():
            return int(self.rows.count_rows())

    def batches(
        self, columns: Sequence[str] | None = None, where: Any = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that also match `where`, batch by batch. Raises DamagedFile."""
        with self.raising_damaged_file():
            yield from self.rows.to_batches(columns=columns, filter=where)

    def read(self) -> pa.Table:
        """Return the rows as a table. Raises DamagedFile."""
        with self.raising_damaged_file():
            return self.rows.to_table()

    @contextmanager
    def raising_damaged_file(self) -> Iterator[None]:
        """Turn an error that a damaged file caused into a DamagedFile."""
        try:
            yield
        except UsageError:
            raise
        # pyarrow and DuckDB raise different errors for a damaged file, and do not name the file.
        except Exception as error:
            damaged = self._find_damaged_file()
            if damaged is None:
                raise
            raise damaged from error

    def _find_damaged_file(self) -> DamagedFile | None:
        """Read all files again until one cannot be read."""
        for fragment in self.data.get_fragments():
            try:
                for _ in fragment.to_batches():
                    pass
            except FileNotFoundError:
                raise  # not damaged, but joined with other files since it was listed
            except (pa.ArrowException, OSError) as reason:
                return DamagedFile(fragment.path, str(reason), ADVICE)
        return None

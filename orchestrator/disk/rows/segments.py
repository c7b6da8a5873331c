"""Segments: Parquet files of one rank, which no longer grow."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.dataset import dataset

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.checksums import write_parquet
from orchestrator.disk.rows.columns import narrow_counters
from orchestrator.disk.rows.dataset import PARTITIONS, read_parts
from orchestrator.disk.rows.recorded_files import RecordedFile, open_parquet
from orchestrator.disk.rows.valid_rows import FILTER_COLUMNS, make_superseded_filter
from orchestrator.storage import Storage


def rewrite_as_segment(
    storage: Storage, parts: Sequence[RecordedFile], attempts: Sequence[Attempt] = ()
) -> None:
    """Rewrite closed parts of one rank as a segment, and delete them. `attempts` determine which
    rows are superseded.

    After a kill in between, readers use the segment. Repeating the call gives the same segment.
    """
    rows = read_parts(storage, parts)
    if len(rows):
        if "phase" in rows.column_names:
            rows = add_superseded_column(narrow_counters(rows), attempts)
        rows = rows.drop_columns([name for name in PARTITIONS.names if name in rows.column_names])
        path = parts[-1].path.replace(".arrow", ".parquet")
        with storage.create(path) as file:
            write_parquet([rows], file)
    storage.map(storage.delete, [part.path for part in parts])


def add_superseded_column(rows: pa.Table, attempts: Sequence[Attempt]) -> pa.Table:
    """Add the column `superseded`, for other readers of the files."""
    columns = {name: pc.field(name) for name in rows.column_names if name != "superseded"}
    return dataset(rows).to_table(
        columns={**columns, "superseded": make_superseded_filter(attempts, rows.column_names)}
    )


def update_superseded_column(
    storage: Storage, path: str, attempts: Sequence[Attempt], **partition: int
) -> None:
    """Rewrite a Parquet file whose column `superseded` is out of date. `partition` has a segment's
    attempt and rank."""
    with open_parquet(storage, path) as file:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        groups = range(parquet.num_row_groups)

        def read_marked(group: int, columns: Sequence[str] | None = None) -> pa.Table:
            rows = parquet.read_row_group(group, columns)
            for name, number in partition.items():
                rows = rows.append_column(name, pa.repeat(number, len(rows)))
            return add_superseded_column(rows, attempts).drop_columns([*partition])

        if all(
            read_marked(group, [*FILTER_COLUMNS, "superseded"])["superseded"].equals(
                parquet.read_row_group(group, ["superseded"])["superseded"]
            )
            for group in groups
        ):
            return
        with storage.create(path) as new_file:
            write_parquet(map(read_marked, groups), new_file)

"""DuckDB, imported lazily: an empty database in memory, without access to files, and names in its
queries."""

from __future__ import annotations

import shutil
from functools import cache
from typing import TYPE_CHECKING
from weakref import finalize

from orchestrator.disk.temporary_folder import temporary_folder

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "768MiB"
"""Memory limit of DuckDB, which spills to disk beyond it."""


def open_database() -> duckdb.DuckDBPyConnection:
    """Open an empty in-memory database without access to files or Python variables."""
    import duckdb

    folder = temporary_folder()
    connection = duckdb.connect(
        config={
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": folder,
            "preserve_insertion_order": "false",
        }
    )
    finalize(connection, shutil.rmtree, folder, ignore_errors=True)
    for setting in (
        "enable_external_access",
        "autoload_known_extensions",
        "python_enable_replacements",
        "enable_progress_bar",
    ):
        connection.execute(f"set {setting} = false")
    return connection


@cache
def get_internal_database() -> duckdb.DuckDBPyConnection:
    """Return the database for this package's own queries; each query has its own cursor."""
    return open_database()


def quote(column: str) -> str:
    """Quote a column's name for SQL."""
    return '"{}"'.format(column.replace('"', '""'))

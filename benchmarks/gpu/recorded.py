"""What a run has recorded, read from its files without pandas."""

from __future__ import annotations

from pathlib import Path

from orchestrator.stats.read.reading import read_recorded, recorded_schema, recorded_tables
from orchestrator.stats.read.recorded_files import recorded_files
from orchestrator.storage import Storage


def column(folder: Path, name: str) -> list[float]:
    """The values of a column in the order of the rows, where there are any."""
    storage = Storage(folder)
    tables = recorded_tables(storage, recorded_files(storage, "rows"), recorded_schema(storage))
    return [
        value
        for table in tables
        if name in table.column_names
        for value in table[name].to_pylist()
        if value is not None
    ]


def spent(folder: Path, event: str) -> float:
    """Seconds that the loop itself took at an event, for each time."""
    costs = [
        cost
        for cost in read_recorded(Storage(folder), "costs").to_pylist()
        if (cost["hook"], cost["event"]) == ("(loop)", event)
    ]
    return float(sum(cost["seconds"] for cost in costs)) / sum(cost["calls"] for cost in costs)

"""Recorded rows of a run, read from its files without pandas."""

from pathlib import Path

from orchestrator.disk.rows.reader import open_recorded
from orchestrator.storage import Storage


def column(folder: Path, name: str) -> list[float]:
    """The values of a column in the order of the rows, where there are any."""
    rows = open_recorded(Storage(folder)).read()
    return (
        [value for value in rows[name].to_pylist() if value is not None]
        if name in rows.column_names
        else []
    )


def spent(folder: Path, event: str) -> float:
    """Seconds that the loop itself took at an event, for each time."""
    costs = [
        cost
        for cost in open_recorded(Storage(folder), "costs").read().to_pylist()
        if (cost["hook"], cost["event"]) == ("(loop)", event)
    ]
    return float(sum(cost["seconds"] for cost in costs)) / sum(cost["calls"] for cost in costs)

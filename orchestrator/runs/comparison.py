"""Comparison of runs. Does not need Ray."""

from collections.abc import Sequence
from typing import Any

from orchestrator.runs.result import Run
from orchestrator.tables.compare import Side, compare


def compare_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the differences between runs; see `orchestrator.tables.compare.compare`."""
    sides = [
        Side(run.name, run.config, run.reports(), run.rows("phase = 'train'"), run.modes)
        for run in runs
    ]
    return compare(sides)

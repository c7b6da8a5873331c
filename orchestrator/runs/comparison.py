"""Comparing runs: what of each is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.runs.result import Run
from orchestrator.stats.aggregate.compare import Side, compare


def compare_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """What differs between runs, as `orchestrator.stats.aggregate.compare.compare` has it; only the columns it needs
    are read."""
    return compare([_side(run) for run in runs])


def _side(run: Run) -> Side:
    return Side(run.name, run.config, run.reports(), run.rows("phase = 'train'"), run.modes)

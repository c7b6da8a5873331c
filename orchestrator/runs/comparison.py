"""Comparison of runs. Does not need Ray."""

from collections.abc import Sequence

from orchestrator.runs.result import Run
from orchestrator.tables.query import TRAINING
from orchestrator.tables.run_comparison import RunComparison, Side, compare


def compare_runs(runs: Sequence[Run]) -> RunComparison:
    """Compare every run with the first."""
    sides = [
        Side(
            name=run.name,
            config=run.config,
            reports=run.reports(),
            rows=run.rows(TRAINING),
            modes=run.modes,
            environment=run.folder.read_metadata().provenance.describe_environment(),
        )
        for run in runs
    ]
    return compare(sides)

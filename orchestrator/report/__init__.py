"""Reports: one HTML file of a run or a sweep, which opens without a network. Knows pandas and neither ray nor torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.records.run_folder import RunFolder


def report(folder: RunFolder) -> str:
    """The page of a run or of a sweep, under way or over."""
    from orchestrator.records.run_folder import now

    if folder.metadata().sweep:
        from orchestrator.report.sweep import sweep_page
        from orchestrator.sweeps.results.result import Sweep

        return sweep_page(Sweep(folder), now())
    from orchestrator.report.run import run_page
    from orchestrator.runs.result import Run

    return run_page(Run(folder), now())

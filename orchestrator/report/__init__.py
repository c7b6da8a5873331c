"""Reports: one HTML file of a run, a sweep or several of either, which opens without a network. Knows pandas and
neither ray nor torch."""

from collections.abc import Sequence

from orchestrator.records.run_folder import RunFolder, now
from orchestrator.report.run import run_page
from orchestrator.report.side_by_side import runs_page, sweeps_page
from orchestrator.report.sweep import sweep_page
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.result import Sweep


def report(folder: RunFolder) -> str:
    """The page of a run or of a sweep, under way or over."""
    return sweep_page(Sweep(folder), now()) if folder.metadata().sweep else run_page(Run(folder), now())


def comparison(folders: Sequence[RunFolder]) -> str:
    """The page of runs, or of sweeps, beside each other."""
    if folders[0].metadata().sweep:
        return sweeps_page([Sweep(folder) for folder in folders], now())
    return runs_page([Run(folder) for folder in folders], now())

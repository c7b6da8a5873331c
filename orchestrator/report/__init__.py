"""Reports: one HTML file about runs or sweeps, which opens without a network. Imports neither ray nor torch."""

from collections.abc import Sequence

from orchestrator.records.run_folder import RunFolder, now
from orchestrator.report.run import run_page
from orchestrator.report.side_by_side import runs_page, sweeps_page
from orchestrator.report.sweep import sweep_page
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.result import Sweep


def report(folder: RunFolder) -> str:
    """Return the page of a run or sweep, running or ended."""
    return sweep_page(Sweep(folder), now()) if folder.metadata().sweep else run_page(Run(folder), now())


def comparison(folders: Sequence[RunFolder]) -> str:
    """Return the page that compares runs or sweeps."""
    if folders[0].metadata().sweep:
        return sweeps_page([Sweep(folder) for folder in folders], now())
    return runs_page([Run(folder) for folder in folders], now())

"""Reports: one HTML file of a run or a sweep, which opens without a network. Knows pandas and neither ray nor torch."""

from orchestrator.records.run_folder import RunFolder, now
from orchestrator.report.run import run_page
from orchestrator.report.sweep import sweep_page
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.result import Sweep


def report(folder: RunFolder) -> str:
    """The page of a run or of a sweep, under way or over."""
    return sweep_page(Sweep(folder), now()) if folder.metadata().sweep else run_page(Run(folder), now())

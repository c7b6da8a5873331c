"""Reports: one HTML file about a run or a sweep, which opens offline. Imports neither ray nor
torch."""

from orchestrator.disk.metadata import format_now
from orchestrator.disk.run_folder import RunFolder
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.result import Sweep


def make_report(folder: RunFolder) -> str:
    """Make the page of a run or sweep, which may still be running."""
    from orchestrator.report.run import make_run_page
    from orchestrator.report.sweep import make_sweep_page

    if folder.read_metadata().sweep:
        return make_sweep_page(Sweep(folder), format_now())

    return make_run_page(Run(folder), format_now())

"""Reports: one HTML file about a run or a sweep, which opens offline. Imports neither ray nor torch."""

from importlib.util import find_spec

from orchestrator.errors import UsageError
from orchestrator.records.run_folder import RunFolder, now
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.result import Sweep


def make_report(folder: RunFolder) -> str:
    """Make the page of a run or sweep, which may still be running."""
    if find_spec("plotly") is None:
        raise UsageError("a report needs the package plotly, which is not installed: pip install 'hookyard[report]'")
    from orchestrator.report.run import make_run_page
    from orchestrator.report.sweep import make_sweep_page

    return make_sweep_page(Sweep(folder), now()) if folder.read_metadata().sweep else make_run_page(Run(folder), now())

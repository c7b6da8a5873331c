"""Reports: one HTML file about a run or a sweep, which opens without a network. Imports neither ray nor torch."""

from importlib.util import find_spec

from orchestrator.errors import UsageError
from orchestrator.records.run_folder import RunFolder, now
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.result import Sweep


def report(folder: RunFolder) -> str:
    """Return the page of a run or sweep, running or ended."""
    if find_spec("plotly") is None:
        raise UsageError("a report needs the package plotly, which is not installed: pip install 'hookyard[report]'")
    from orchestrator.report.run import run_page
    from orchestrator.report.sweep import sweep_page

    return sweep_page(Sweep(folder), now()) if folder.read_metadata().sweep else run_page(Run(folder), now())

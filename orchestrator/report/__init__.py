"""Reports: one HTML file about a run or a sweep, which opens offline. Imports neither ray nor
torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.timestamps import format_now
from orchestrator.runs.result import Run
from orchestrator.sweeps.results.result import Sweep

if TYPE_CHECKING:
    from orchestrator.report.page import Page
    from orchestrator.report.views.media import Link


def make_report(folder: RunFolder) -> str:
    """Make the page of a run or sweep, which may still be running, as one file."""
    from orchestrator.report.document import make_file

    return make_file(outline(folder), str(folder), format_now())


def outline(folder: RunFolder, link: Link | None = None) -> Page:
    """Read what the page of a run or sweep shows. `link` returns the address of a run's image,
    which the page holds otherwise."""
    from orchestrator.report.run import outline_run
    from orchestrator.report.sweep import outline_sweep

    if folder.read_metadata().sweep:
        return outline_sweep(Sweep(folder))

    return outline_run(Run(folder), link)

"""The display of a run or a sweep in its driver: a terminal, or the cell of a notebook."""

from orchestrator.disk.run_folder import RunFolder
from orchestrator.process.streams import is_notebook
from orchestrator.terminal.display import TerminalDisplay
from orchestrator.terminal.notebook import NotebookDisplay


def open_display(folder: RunFolder, is_sweep: bool) -> TerminalDisplay | NotebookDisplay:
    """Return the display of a run, which shows bars on a terminal, or of a sweep, which shows a
    frame."""
    if not is_notebook() and not is_sweep:
        return TerminalDisplay(folder.storage)

    # It imports pandas, which the driver of a run on a terminal does not need.
    from orchestrator.terminal.frames import LiveFrame

    display = NotebookDisplay if is_notebook() else TerminalDisplay
    return display(folder.storage, LiveFrame(folder))

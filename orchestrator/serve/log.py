"""The end of a run's log."""

from contextlib import suppress

from orchestrator.disk.run_folder import RunFolder
from orchestrator.report.markup import element
from orchestrator.report.page import Section

_MAX_BYTES = 2**16
_MAX_LINES = 200


def render_log(folder: RunFolder) -> Section:
    """Render the last lines that the driver of a run has logged."""
    lines: list[str] = []
    state = folder.storage.state("log.txt")
    if state:
        start = max(0, state.size_bytes - _MAX_BYTES)
        with suppress(FileNotFoundError):
            text = folder.storage.read("log.txt", start).decode(errors="replace")
            lines = text.splitlines()[-_MAX_LINES:]
    if not lines:
        return Section("log", "Log", "The run has logged nothing yet.")
    return Section("log", "Log", element("pre", "\n".join(lines), tabindex=0), "The last lines.")

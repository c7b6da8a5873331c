"""The display of a run or a sweep while it runs. The public API provides it, see `orchestrator`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hooks.loop_services import Display
    from orchestrator.disk.run_folder import RunFolder

OpenDisplay = Callable[["RunFolder", bool], "AbstractContextManager[Display]"]
"""Opens the display of a folder; the flag says whether it is a sweep's."""

_open_display: OpenDisplay


def set_display(open_display: OpenDisplay) -> None:
    """Set what `open_display` calls in this process."""
    global _open_display
    _open_display = open_display


def open_display(folder: RunFolder, *, is_sweep: bool = False) -> AbstractContextManager[Display]:
    """Return the display of a run or a sweep, to enter while it runs."""
    return _open_display(folder, is_sweep)

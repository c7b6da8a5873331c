"""pdb on the terminal of a run, which pauses the display at breakpoints."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pdb import Pdb
from typing import Any

_VARIABLE = "PYTHONBREAKPOINT"
"""Environment variable that chooses what `breakpoint()` calls."""


def has_other_debugger() -> bool:
    """Return whether the environment sets a debugger other than pdb for `breakpoint()`."""
    return os.environ.get(_VARIABLE, "") not in ("", "0", "pdb.set_trace")


@contextmanager
def pausing_at_breakpoints(paused: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Make `breakpoint()` open pdb while the block runs.

    Args:
        paused: Returns a context manager that pauses the display, within which pdb runs.
    """

    def stop(*args: Any, **kwargs: Any) -> None:
        frame = inspect.currentframe()
        caller = frame.f_back if frame else None
        Debugger(paused).set_trace(caller)

    if os.environ.get(_VARIABLE) == "0":
        yield
        return

    previous_hook = sys.breakpointhook
    sys.breakpointhook = stop
    try:
        yield
    finally:
        sys.breakpointhook = previous_hook


class Debugger(Pdb):
    """pdb on this terminal, even while stdout is redirected. Ctrl-C still ends the run."""

    def __init__(self, paused: Callable[[], AbstractContextManager[None]]) -> None:
        """Make a debugger.

        Args:
            paused: Returns a context manager that pauses the display, within which pdb runs.
        """
        super().__init__(nosigint=True)
        self._paused = paused

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        # The pause also restores the stdout that the display had replaced.
        with self._paused():
            terminal: Any = sys.__stdout__
            self.stdout = terminal if terminal is not None and terminal.isatty() else sys.stdout
            with redirect_stdout(self.stdout):
                super().interaction(*args, **kwargs)

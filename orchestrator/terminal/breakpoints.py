"""Breakpoints in what is trained in this process: nothing is drawn over a debugger that somebody types into."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pdb import Pdb
from typing import Any

_VARIABLE = "PYTHONBREAKPOINT"


def another_debugger() -> bool:
    """Whether the environment names a debugger for `breakpoint()` other than Python's own."""
    return os.environ.get(_VARIABLE, "") not in ("", "0", "pdb.set_trace")


@contextmanager
def breakpoints(paused: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Within it `breakpoint()` is Python's debugger, and whoever draws is `paused` while it waits for a command."""

    def stop(*args: Any, **named: Any) -> None:
        frame = inspect.currentframe()
        Debugger(paused).set_trace(frame and frame.f_back)

    if os.environ.get(_VARIABLE) == "0":
        yield
        return
    before, sys.breakpointhook = sys.breakpointhook, stop
    try:
        yield
    finally:
        sys.breakpointhook = before


class Debugger(Pdb):
    """Python's debugger on this terminal, also where what is printed goes elsewhere. Ctrl-C stays what it is to the
    run."""

    def __init__(self, paused: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(nosigint=True)
        self._paused = paused

    def interaction(self, *args: Any, **named: Any) -> None:
        """Takes commands until one goes on with the program."""
        with self._paused(), redirect_stdout(_terminal()):
            self.stdout = sys.stdout
            super().interaction(*args, **named)


def _terminal() -> Any:
    own = sys.__stdout__
    return own if own is not None and own.isatty() else sys.stdout

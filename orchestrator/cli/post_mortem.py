"""`--pdb`: a debugger where a run failed, in the frame of the experiment's own code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from orchestrator.errors import UsageError


def refuse_without_terminal(in_process: bool) -> None:
    """Raises UsageError where there is nothing to debug in this process, or nobody to type."""
    if not in_process:
        raise UsageError("--pdb debugs what trains in this process: add --local")
    if not sys.stdin.isatty():
        raise UsageError("--pdb needs a terminal to type on, and stdin is none")


@contextmanager
def post_mortem(asked: bool) -> Iterator[None]:
    """Within it a run that fails is looked at with Python's debugger before the failure goes on, where that is `asked`
    for."""
    try:
        yield
    except Exception as error:  # any failure may be looked at; it goes on as it was
        if asked and not isinstance(error, UsageError):
            _debug(error)
        raise


def _debug(error: Exception) -> None:
    from bdb import BdbQuit

    from orchestrator.engines.rank_failures import first_of_the_experiment, frames_behind_experiment
    from orchestrator.terminal.breakpoints import Debugger

    first = first_of_the_experiment(error)
    if isinstance(first, BdbQuit):  # somebody has left a debugger
        return
    print(*traceback.format_exception_only(first), sep="", end="", file=sys.stderr)
    debugger = Debugger(nullcontext)
    if above := frames_behind_experiment(first):
        debugger.cmdqueue.append(f"up {above}")
    debugger.reset()
    debugger.interaction(None, first.__traceback__)

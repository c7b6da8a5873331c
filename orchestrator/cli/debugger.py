"""The debugger of `--pdb`, which opens where user code failed."""

from __future__ import annotations

import sys
import traceback
from bdb import BdbQuit
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from orchestrator.errors import UsageError


def check_terminal() -> None:
    """Raise UsageError if --pdb has no terminal."""
    if not sys.stdin.isatty():
        raise UsageError("--pdb needs a terminal, and stdin is not one")


@contextmanager
def post_mortem(enabled: bool) -> Iterator[None]:
    """Open Python's debugger in the frame of user code if the block fails, except for a wrong
    use."""
    try:
        yield
    except Exception as error:
        if enabled and not isinstance(error, UsageError):
            _start_debugger(error)
        raise


def _start_debugger(error: Exception) -> None:
    """Debug the root cause of an error in user code, unless the user has just left a debugger."""
    from orchestrator.engines.error_origin import (
        count_frames_below_user_code,
        find_root_cause_in_user_code,
    )
    from orchestrator.terminal.debugger import Debugger

    first = find_root_cause_in_user_code(error)
    if isinstance(first, BdbQuit):
        return

    print(*traceback.format_exception_only(first), sep="", end="", file=sys.stderr)
    debugger = Debugger(nullcontext)
    frames = count_frames_below_user_code(first)
    if frames:
        debugger.cmdqueue.append(f"up {frames}")
    debugger.reset()
    debugger.interaction(None, first.__traceback__)

"""Signals of child processes: a process that handles SIGINT, SIGTERM and SIGHUP handles them for
its children, too.

Terminals, `timeout`, systemd and Slurm signal all processes of a job. The processes of a loader
must then go on, until their parent has saved a checkpoint. This applies to all processes that
`multiprocessing` forks while a `@for_children` method handles SIGTERM.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize, register_after_fork
from types import FrameType
from typing import TypeVar

H = TypeVar("H", bound=Callable[..., None])

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_thread = threading.local()
"""Of a thread that forks: the signals that it had blocked before (`mask`), and whether its children
get process groups of their own (`separates`)."""


def for_children(handler: H) -> H:
    """Mark a handler of signals, which then reach only this process and not its children."""
    handler.is_for_children = True  # type: ignore[attr-defined]
    return handler


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. A child that executes another program resets this handler, unlike `SIG_IGN`."""


@contextmanager
def separate_children() -> Iterator[None]:
    """Start this thread's children in process groups of their own within the block, if they run
    Python before `exec`.

    A signal to the group of this process, as `timeout` sends it, would end Ray before the run has
    saved a checkpoint.
    """
    # Elsewhere Ray's processes outlive a killed driver unless they are in its group.
    _thread.separates = sys.platform == "linux"
    try:
        yield
    finally:
        _thread.separates = False


def _hold_signals() -> None:
    """Block the signals until the child has its handlers. Runs before each fork."""
    _thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _thread.mask)


def _release_signals_in_child() -> None:
    if getattr(_thread, "separates", False):
        os.setpgid(0, 0)
    if getattr(signal.getsignal(signal.SIGTERM), "is_for_children", False):
        signal.set_wakeup_fd(-1)  # the parent reads it
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, _ignore)
    _release_signals()


def _end_with_parent(module: object) -> None:
    """Ignore SIGTERM unless the parent sends it, as `Process.terminate` does, and write no queue to
    its end once the parent has died. Runs in a child of `multiprocessing`."""
    if signal.getsignal(signal.SIGTERM) is not _ignore:
        return
    parent = os.getppid()
    # Its priority is above that of the end of a queue.
    Finalize(None, _exit_if_orphaned, args=(parent,), exitpriority=0)

    if not hasattr(signal, "sigwaitinfo"):
        return  # macOS does not tell who sends a signal
    # The processes of torch's loaders handle SIGTERM in C, so it must be blocked, and a thread waits
    # for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=_wait_for_parent, args=(parent,), name="signals", daemon=True).start()


def _exit_if_orphaned(parent: int) -> None:
    """Exit at once if the parent has died, as with SIGKILL.

    The processes of a loader hold the ends of each other's queues, so each would wait for ever for
    somebody to read the rest of its own.
    """
    if os.getppid() != parent:
        os._exit(1)


def _wait_for_parent(parent: int) -> None:
    """Exit at a SIGTERM of the parent, or at anyone's once the parent has died."""
    while True:
        sender = signal.sigwaitinfo([signal.SIGTERM]).si_pid
        if sender == parent or os.getppid() != parent:
            os._exit(0)


os.register_at_fork(
    before=_hold_signals, after_in_parent=_release_signals, after_in_child=_release_signals_in_child
)
register_after_fork(sys.modules[__name__], _end_with_parent)

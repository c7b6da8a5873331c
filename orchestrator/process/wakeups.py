"""A thread that learns of signals, even while the main thread is in a call into C."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watching_signals(handle: Callable[[bytes], None]) -> Iterator[None]:
    """Call a function in another thread for the signals that arrive within the block.

    Only the main thread can do so, and only for signals that have a handler of Python.

    Args:
        handle: Gets the numbers of the signals that have arrived since its last call.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read, handle), name="interrupts", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write)  # ends the thread


def _watch(read: int, handle: Callable[[bytes], None]) -> None:
    while numbers := os.read(read, 64):
        handle(numbers)
    os.close(read)

"""Output of this process: its standard streams, or the cells of a notebook."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class PipeSafe:
    """A text stream that drops text once its reader has exited; training continues."""

    def __init__(self, stream: Any) -> None:
        # The null device stays open until the process ends.
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # A closed terminal gives EIO.
            if error.errno not in (errno.EPIPE, errno.EBADF, errno.EIO):
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
        except ValueError:
            if not self._stream.closed:
                raise


def print_line(text: str) -> None:
    """Write one line to stderr, as far as it can be written."""
    with suppress(OSError):
        print(text, file=PipeSafe(sys.stderr), flush=True)


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")

"""What user code prints in a worker, passed on to the driver. Ray writes it only to a log on the
worker's node."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

MAX_LENGTH = 10_000
"""Number of characters of a line that are passed on."""


class PrintedLines:
    """The stdout of a worker, which also passes each complete line on.

    Text after a carriage return replaces the line, as on a terminal. Processes that are forked from
    this one, such as DataLoader workers, pass nothing on.

    Args:
        pass_on: Called with each line, in the thread that prints.
    """

    def __init__(self, pass_on: Callable[[str], None]) -> None:
        self._stdout = sys.stdout
        self._pass_on = pass_on
        self._process = os.getpid()
        self._line = ""
        """The line that has begun; it ends with a carriage return if the next text replaces it."""

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Within, pass on what this process prints; at the end also a line without an end."""
        sys.stdout = cast(TextIO, self)
        try:
            yield
        finally:
            # A hook may have put another stdout around this one, which stays.
            if sys.stdout is cast(TextIO, self):
                sys.stdout = self._stdout
            if self._line:
                self._end_line()

    def write(self, text: str) -> int:
        if os.getpid() == self._process:
            *lines, last = text.split("\n")
            for line in lines:
                self._add(line)
                self._end_line()
            self._add(last)
        return self._stdout.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def _add(self, text: str) -> None:
        line = (self._line + text)[:MAX_LENGTH]
        shown = line.rstrip("\r")
        self._line = shown.rpartition("\r")[2] + line[len(shown) :]

    def _end_line(self) -> None:
        self._pass_on(self._line.rstrip("\r"))
        self._line = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)

"""What user code prints in a worker, passed on to the driver. Ray writes it only to a log on the
worker's node."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast


class PrintedLines:
    """A stdout that also passes each complete line on. Used in workers.

    Processes that are forked from this one, such as DataLoader workers, pass nothing on.

    Args:
        stdout: Where the text still goes.
        pass_on: Called with each line, in the thread that prints.
    """

    def __init__(self, stdout: TextIO, pass_on: Callable[[str], None]) -> None:
        self._stdout = stdout
        self._pass_on = pass_on
        self._process = os.getpid()
        self._begun_line = ""

    def write(self, text: str) -> int:
        if os.getpid() == self._process:
            *lines, self._begun_line = (self._begun_line + text).split("\n")
            for line in lines:
                self._pass_on(line)
        return self._stdout.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)


@contextmanager
def printed_lines_passed_on(pass_on: Callable[[str], None]) -> Iterator[None]:
    """Within, call `pass_on` with each line that this process prints."""
    with redirect_stdout(cast(TextIO, PrintedLines(sys.stdout, pass_on))):
        yield

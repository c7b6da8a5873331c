"""The one place where an error becomes lines on stderr and an exit code."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from orchestrator.errors import HookyardError, UsageError
from orchestrator.storage.storage import advice_on
from orchestrator.terminal.printable import PrintableFormatter, printable

FAILED = 1
WRONG_USAGE = 2
SOME_FAILED = 3
INTERRUPTED = 130


class Unbroken:
    """A stream of text that may lose its reader: what is written after that goes nowhere, and is no failure of what is
    done."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes as the stream does, or not at all."""
        with self._closed():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes as the stream does."""
        with self._closed():
            self._stream.flush()

    @contextmanager
    def _closed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EBADF):
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        except ValueError:  # the stream itself was closed
            if not self._stream.closed:
                raise


def open_standard_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr, as a daemon may be, one that leads nowhere.

    Otherwise the next files it opens take their numbers, and what is meant for a terminal goes into them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115  # stays open until the process ends


class _Once(logging.Filter):
    """Lets each message through once in a command, as several readers meet the same damaged file."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = message not in self._messages
        self._messages.add(message)
        return is_new


@contextmanager
def _each_message_once() -> Iterator[None]:
    log, once = logging.getLogger("hookyard"), _Once()
    log.addFilter(once)
    try:
        yield
    finally:
        log.removeFilter(once)


class Verbs(TyperGroup):
    """The verbs of the command line: what they raise on purpose is told without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Calls the verb; exits with 2 where the call was wrong, 1 where the work failed, 130 where it was
        interrupted."""
        sys.stdout, sys.stderr = Unbroken(sys.stdout), Unbroken(sys.stderr)
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PrintableFormatter())
        try:
            with _each_message_once():
                return super().invoke(ctx)
        except HookyardError as error:
            typer.echo(printable(str(error)), err=True)
            raise typer.Exit(WRONG_USAGE if isinstance(error, UsageError) else FAILED) from None
        except OSError as error:
            typer.echo(f"{printable(str(error))}. {advice_on(error)}", err=True)
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None

"""Errors of the command line: a message on stderr, an exit code, and no traceback for Hookyard's own errors."""

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


class Verbs(TyperGroup):
    """The group of all verbs, which turns errors into exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Call the verb; exit with 2 for wrong usage, 1 for a failure, 130 for an interruption."""
        sys.stdout, sys.stderr = PipeSafe(sys.stdout), PipeSafe(sys.stderr)
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PrintableFormatter())
        try:
            with _unique_messages():
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


@contextmanager
def _unique_messages() -> Iterator[None]:
    """Log each message once: several readers meet the same damaged file."""
    messages: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        count = len(messages)
        messages.add(record.getMessage())
        return len(messages) > count

    log = logging.getLogger("hookyard")
    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


class PipeSafe:
    """A text stream that drops text once its reader has gone, so that training continues."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

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
            if error.errno not in (errno.EPIPE, errno.EBADF):
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
        except ValueError:
            if not self._stream.closed:
                raise


def open_standard_streams() -> None:
    """Connect missing standard streams to /dev/null, as in a daemon.

    Otherwise the next files that open take their numbers, and terminal output goes into them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115  # until the process ends
            setattr(sys, name, stream)

"""The one place where an error becomes lines on stderr and an exit code."""

from __future__ import annotations

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
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class Verbs(TyperGroup):
    """The verbs of the command line: what they raise on purpose is told without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Calls the verb; exits with 2 where the call was wrong, 1 where the work failed, 130 where it was
        interrupted."""
        sys.stdout, sys.stderr = Unbroken(sys.stdout), Unbroken(sys.stderr)
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PrintableFormatter())
        try:
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

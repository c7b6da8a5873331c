"""Exit codes of the command line, and errors as a message on stderr, without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from orchestrator.cli.output import echo
from orchestrator.errors import HookyardError, RunError, UsageError
from orchestrator.storage.disk_errors import advice_on

FAILED = 1
WRONG_USAGE = 2
SOME_FAILED = 3
INTERRUPTED = 130


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print an error on stderr, and exit with 2 for wrong usage, 1 for a failure, 130 for an
    interruption."""
    try:
        yield
    except HookyardError as error:
        echo(error, err=True)
        if isinstance(error, RunError) and error.traceback_file:
            echo(f"The traceback is in {error.traceback_file}", err=True)
        code = WRONG_USAGE if isinstance(error, UsageError) else FAILED
        raise typer.Exit(code) from None
    except OSError as error:
        echo(f"{error}. {advice_on(error)}", err=True)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None

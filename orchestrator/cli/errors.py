"""Errors of the command line: a message on stderr, an exit code, and no traceback for Hookyard's
own errors."""

import logging
import os
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from orchestrator.errors import HookyardError, RunError, UsageError
from orchestrator.process.streams import PipeSafe
from orchestrator.storage.disk_errors import advice_on
from orchestrator.terminal.printable import PrintableFormatter, escape_controls

FAILED = 1
WRONG_USAGE = 2
SOME_FAILED = 3
INTERRUPTED = 130


class _HidesFlagTypes:
    """A command whose help shows no type beside a flag, because a flag takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Subcommand(_HidesFlagTypes, TyperCommand):
    """A subcommand of `hookyard`."""


def _check_current_folder() -> None:
    """Raise UsageError if the current folder was removed, in which no relative path means
    anything."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder was removed; change to another one") from None


class Subcommands(_HidesFlagTypes, TyperGroup):
    """The group of all subcommands, which turns errors into exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Call the subcommand; exit with 2 for wrong usage, 1 for a failure, 130 for an
        interruption."""
        sys.stdout, sys.stderr = PipeSafe(sys.stdout), PipeSafe(sys.stderr)
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PrintableFormatter())
        try:
            _check_current_folder()
            return super().invoke(ctx)
        except HookyardError as error:
            typer.echo(escape_controls(str(error)), err=True)
            if isinstance(error, RunError) and error.traceback_file:
                typer.echo(f"The traceback is in {escape_controls(error.traceback_file)}", err=True)
            raise typer.Exit(WRONG_USAGE if isinstance(error, UsageError) else FAILED) from None
        except OSError as error:
            typer.echo(f"{escape_controls(str(error))}. {advice_on(error)}", err=True)
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None

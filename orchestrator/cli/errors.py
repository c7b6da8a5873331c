"""The one place where an error becomes lines on stderr and an exit code."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from orchestrator.errors import HookyardError, UsageError

FAILED = 1
WRONG_USAGE = 2
SOME_FAILED = 3
INTERRUPTED = 130


class Verbs(TyperGroup):
    """The verbs of the command line: what they raise on purpose is told without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Calls the verb; exits with 2 where the call was wrong, 1 where the work failed, 130 where it was interrupted."""
        try:
            return super().invoke(ctx)
        except HookyardError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(WRONG_USAGE if isinstance(error, UsageError) else FAILED) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None

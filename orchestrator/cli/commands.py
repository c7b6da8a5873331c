"""The classes of `hookyard` and of its subcommands: how they read arguments, and end after an
error."""

import logging
import os
import sys
from typing import Any, ClassVar

from typer.core import TyperCommand, TyperGroup

from orchestrator.cli.errors import exit_on_error
from orchestrator.cli.usage_errors import (
    describe_extra_arguments,
    describe_unknown_command,
    explain_usage_errors,
    raise_usage_error,
)
from orchestrator.errors import UsageError
from orchestrator.process.streams import PipeSafe
from orchestrator.terminal.printable import PrintableFormatter


class Subcommand(TyperCommand):
    """A subcommand of `hookyard`."""

    allow_extra_args = True
    """Typer leaves extra arguments to `parse_args`, which refuses them with a hint."""
    takes_experiment_keys: ClassVar[bool] = False
    """True if overrides may change any key of an experiment, so that an unknown flag may be meant
    as an override."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and flags."""
        return _hide_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; raise UsageError if they are wrong."""
        possible_overrides = list(args) if self.takes_experiment_keys else []
        with explain_usage_errors(ctx, possible_overrides):
            extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            raise_usage_error(ctx, describe_extra_arguments(extra))
        return extra


class ExperimentCommand(Subcommand):
    """A subcommand that reads an experiment file and changes any of its keys."""

    takes_experiment_keys = True


class Subcommands(TyperGroup):
    """The group of all subcommands, which turns errors into exit codes."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the flags of `hookyard` itself."""
        return _hide_types_of_flags(super().get_params(ctx))

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the flags before the subcommand."""
        with exit_on_error():
            return super().make_context(*args, **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the flags before the subcommand; raise UsageError if they are wrong."""
        if not args:
            return super().parse_args(ctx, args)  # prints the help
        with explain_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the subcommand and its arguments; raise UsageError if there is none."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise_usage_error(ctx, describe_unknown_command(args[0], self.commands))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Call the subcommand."""
        sys.stdout = PipeSafe(sys.stdout)
        sys.stderr = PipeSafe(sys.stderr)
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PrintableFormatter())
        with exit_on_error(), explain_usage_errors(ctx):
            _check_current_folder()
            return super().invoke(ctx)


def _hide_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Let the help show no type beside a flag, because a flag takes no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def _check_current_folder() -> None:
    """Raise UsageError if the current folder was removed, in which no relative path means
    anything."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder was removed; change to another one") from None

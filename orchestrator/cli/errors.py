"""Errors of the command line: a message on stderr, an exit code, and no traceback for Hookyard's
own errors."""

import logging
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from orchestrator.errors import HookyardError, RunError, UsageError, did_you_mean, find_nearest
from orchestrator.process.streams import PipeSafe
from orchestrator.storage.disk_errors import advice_on
from orchestrator.terminal.printable import PrintableFormatter, escape_controls

WrongCall: type[Exception] = typer.BadParameter.__bases__[0]
"""Base of Typer's errors about a command line, which it exports under no name."""

_ARGUMENTS = "hookyard.arguments"
"""Key of a command's arguments in Typer's context."""

_OTHER_NAMES = {
    "train": "run",
    "start": "run",
    "fit": "run",
    "tune": "sweep",
    "continue": "resume",
    "check": "validate",
    "list": "ls",
    "info": "show",
    "remove": "rm",
    "delete": "rm",
    "eval": "evaluate",
    "test": "evaluate",
    "diff": "compare",
    "new": "init",
    "create": "init",
}
"""Commands by what people try instead."""

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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments of a command that takes overrides, for an error about a flag.

        Most keys have no effect on an evaluation, so it gets no such hint.
        """
        takes_overrides = any(parameter.name == "overrides" for parameter in self.params)
        if takes_overrides and self.name != "evaluate":
            ctx.meta[_ARGUMENTS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except WrongCall as error:
            error.ctx = ctx  # type: ignore[attr-defined]  # Typer leaves it out for a flag's value
            raise


def _check_current_folder() -> None:
    """Raise UsageError if the current folder was removed, in which no relative path means
    anything."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder was removed; change to another one") from None


@contextmanager
def _reporting_wrong_calls(commands: Iterable[str]) -> Iterator[None]:
    """Report what Typer finds wrong with a command line as other errors are."""
    try:
        yield
    except WrongCall as error:
        ctx = getattr(error, "ctx", None)
        verb = ctx.command_path.partition(" ")[2] if ctx else ""
        command = f"hookyard {verb}".rstrip()
        flags = [flag for parameter in ctx.command.params for flag in parameter.opts] if ctx else []
        text = error.format_message()  # type: ignore[attr-defined]  # Typer's own class
        arguments = ctx.meta.get(_ARGUMENTS, ()) if ctx else ()
        message = describe_wrong_call(text, flags, commands, arguments)
        typer.echo(f"{escape_controls(message)}. See {command} --help", err=True)
        raise typer.Exit(WRONG_USAGE) from None


def describe_wrong_call(
    message: str, flags: Iterable[str], commands: Iterable[str], arguments: Sequence[str] = ()
) -> str:
    """Say in Hookyard's words what Typer says of a command line.

    `flags` are those of the command, and `arguments` are what it was called with if it takes
    overrides.
    """
    if match := re.match(r"No such command '(.*?)'", message):
        nearest = _find_command(match[1], commands)
        return f"no command '{match[1]}'{f' ({nearest})' if nearest else ''}"
    if match := re.match(r"No such option:? '?(--?[\w.-]*\w)", message):
        flag = match[1]
        nearest = did_you_mean(flag, flags)
        if nearest:
            return f"no flag {flag} ({nearest})"
        override = _make_override(flag, arguments)
        return (
            f"no flag {flag}{f'; to change the experiment, write {override}' if override else ''}"
        )
    if match := re.match(r"Option '(.*?)' requires an argument", message):
        return f"{match[1]} needs a value"
    if match := re.match(r"Option '(.*?)' does not take a value", message):
        return f"{match[1]} takes no value"
    if match := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        text = f"unexpected argument: {match[1]}"
        if "=" not in match[1]:
            return text
        return f"{text}. To continue a run with other values: hookyard run RUN@last {match[1]}"
    if match := re.match(r"Missing (?:argument|option|parameter) '(.*?)'", message):
        return f"{match[1]} is missing"
    if match := re.match(
        r"Invalid value for '(.*?)'(?: / '.*?')*: (?:Value error, )?(.*)", message
    ):
        name = match[1]
        choice = re.match(r"'(.*)' is not one of (.*?)\.?$", match[2])
        bound = re.match(r"Input should be (greater|less) than or equal to (\S+)", match[2])
        if bound:
            return f"{name} must be at {'least' if bound[1] == 'greater' else 'most'} {bound[2]}"
        kind = re.match(r"Input should be (?:a valid )?(integer|number)", match[2])
        if kind:
            return f"{name} must be {'an integer' if kind[1] == 'integer' else 'a number'}"
        if choice is None:
            return f"{name}: {match[2][:1].lower()}{match[2][1:].rstrip('.')}"
        allowed = re.findall(r"'(.*?)'", choice[2])
        nearest = did_you_mean(choice[1], allowed)
        got = f"{name} must be one of {', '.join(allowed)}, got '{choice[1]}'"
        return f"{got} ({nearest})" if nearest else got
    return f"{message[:1].lower()}{message[1:].rstrip('.')}"


def _find_command(name: str, commands: Iterable[str]) -> str | None:
    """Suggest the nearest command, also by a name that it has elsewhere; None if none is near."""
    meant = {**_OTHER_NAMES, **{command: command for command in commands}}
    nearest = find_nearest(name, meant)
    return f"did you mean '{meant[nearest]}'?" if nearest else None


def _make_override(flag: str, arguments: Sequence[str]) -> str | None:
    """Return the override that a flag was probably meant as, such as `epochs=3` for
    `--epochs 3`."""
    key = _find_key(flag) if arguments else None
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name != flag or key is None:
            continue
        following = arguments[index + 1 : index + 2]
        if not equals and following and not following[0].startswith("-"):
            value = following[0]
        return f"{key}={shlex.quote(value or 'VALUE')}"
    return None


def _find_key(flag: str) -> str | None:
    """Return the key of an experiment with the name of a flag, or a similar name."""
    from orchestrator.experiment.sections.experiment import Experiment

    first, dot, rest = flag.lstrip("-").replace("-", "_").partition(".")
    known = Experiment.model_fields
    nearest = first if first in known else find_nearest(first, known)
    return f"{nearest}{dot}{rest}" if nearest and flag.startswith("--") else None


class Subcommands(_HidesFlagTypes, TyperGroup):
    """The group of all subcommands, which turns errors into exit codes."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the flags before the subcommand."""
        with _reporting_wrong_calls(self.commands):
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Call the subcommand; exit with 2 for wrong usage, 1 for a failure, 130 for an
        interruption."""
        sys.stdout, sys.stderr = PipeSafe(sys.stdout), PipeSafe(sys.stderr)
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PrintableFormatter())
        try:
            _check_current_folder()
            with _reporting_wrong_calls(self.commands):
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

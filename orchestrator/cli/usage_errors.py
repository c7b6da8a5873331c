"""Wrong command lines: Typer's errors become UsageErrors in Hookyard's words."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from orchestrator.cli.override_hint import suggest_override, suggest_similar_override
from orchestrator.cli.wrong_values import describe_wrong_value, make_clause
from orchestrator.errors import UsageError
from orchestrator.nearest_names import find_nearest
from orchestrator.storage import without_credentials

_TyperUsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Base of Typer's errors about a command line. Typer exports only `BadParameter`, so the attributes
of the others tell them apart."""

_COMMANDS_OF_OTHERS = {
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
"""Hookyard's command for each name that other tools give to such a command."""


@contextmanager
def explain_usage_errors(
    ctx: typer.Context, possible_overrides: Sequence[str] = ()
) -> Iterator[None]:
    """Raise UsageError for what Typer finds wrong with the arguments of a command.

    Args:
        ctx: Context of the command.
        possible_overrides: All arguments of a command that takes overrides, because `--epochs 3`
            may be meant as the override `epochs=3`.
    """
    try:
        yield
    except typer.BadParameter as error:
        raise_usage_error(ctx, describe_wrong_value(error))
    except _TyperUsageError as error:
        raise_usage_error(ctx, _describe_wrong_flag(error, ctx, possible_overrides))


def raise_usage_error(ctx: typer.Context, message: str) -> NoReturn:
    """Raise UsageError with a message that names the help of the command, and hides the credentials
    of the arguments that it quotes."""
    subcommand = ctx.command_path.partition(" ")[2]
    command = f"hookyard {subcommand}".rstrip()
    raise UsageError(f"{without_credentials(message)}. See {command} --help")


def describe_unknown_command(name: str, commands: Iterable[str]) -> str:
    """Say that there is no such command, and which one is nearest, also by the names that other
    tools use."""
    command_by_name = {**_COMMANDS_OF_OTHERS, **{command: command for command in commands}}
    nearest = find_nearest(name, command_by_name)
    suggestion = f" (did you mean '{command_by_name[nearest]}'?)" if nearest else ""
    return f"no command '{name}'{suggestion}"


def describe_extra_arguments(arguments: Sequence[str]) -> str:
    """Say which arguments a command does not take, and which command takes overrides."""
    text = f"unexpected argument: {' '.join(arguments)}"
    overrides = [argument for argument in arguments if "=" in argument]
    if not overrides:
        return text
    command = f"hookyard run RUN@last {shlex.join(overrides)}"
    return f"{text}. To continue a run with other values: {command}"


def _describe_wrong_flag(error: Any, ctx: typer.Context, possible_overrides: Sequence[str]) -> str:
    """Say that a flag is unknown, or that it needs a value or takes none."""
    if not hasattr(error, "option_name"):
        return make_clause(error.message)

    flag = error.option_name
    flags = _list_flags(ctx)
    if flag not in flags:
        return _describe_unknown_flag(flag, flags, possible_overrides)
    if flags[flag].is_flag:
        return f"{flag} takes no value"
    return f"{flag} needs a value"


def _list_flags(ctx: typer.Context) -> Mapping[str, Any]:
    """Return the parameters of a command by each of their flags."""
    flags: dict[str, Any] = {}
    for parameter in ctx.command.get_params(ctx):
        flags.update(dict.fromkeys(parameter.opts, parameter))
    return flags


def _describe_unknown_flag(
    flag: str, flags: Iterable[str], possible_overrides: Sequence[str]
) -> str:
    override = suggest_override(flag, possible_overrides)
    if not override:
        # The dashes, which all flags have, are no likeness.
        flag_by_name = {known.lstrip("-"): known for known in flags}
        nearest = find_nearest(flag.lstrip("-"), flag_by_name)
        if nearest:
            return f"no flag {flag} (did you mean '{flag_by_name[nearest]}'?)"
        override = suggest_similar_override(flag, possible_overrides)
    if override:
        return f"no flag {flag}; to change the experiment, write {override}"
    return f"no flag {flag}"

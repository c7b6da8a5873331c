"""Descriptions of wrong command lines, in Hookyard's words."""

import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from orchestrator.errors import UsageError
from orchestrator.nearest_names import did_you_mean, find_nearest
from orchestrator.storage import without_credentials

_TyperUsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Base of Typer's errors about a command line. Typer exports only `BadParameter`, so the attributes
of the others tell them apart."""

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

_NEEDS = {
    "int_parsing": "an integer",
    "float_parsing": "a number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
"""What a value must be, by the type of pydantic's error."""


def raise_usage_error(ctx: typer.Context, message: str) -> NoReturn:
    """Raise UsageError with a message that names the help of the command, and hides the credentials
    of the arguments that it quotes."""
    subcommand = ctx.command_path.partition(" ")[2]
    command = f"hookyard {subcommand}".rstrip()
    raise UsageError(f"{without_credentials(message)}. See {command} --help")


@contextmanager
def explain_usage_errors(ctx: typer.Context, maybe_overrides: Sequence[str] = ()) -> Iterator[None]:
    """Raise UsageError for what Typer finds wrong with the arguments of a command.

    `maybe_overrides` are the arguments among which an unknown flag may be meant as an override.
    """
    try:
        yield
    except _TyperUsageError as error:
        raise_usage_error(ctx, _describe(error, ctx.command.get_params(ctx), maybe_overrides))


def describe_unknown_command(name: str, commands: Iterable[str]) -> str:
    """Say that there is no such command, and which one is nearest, also by what other tools call
    it."""
    meant = {**_OTHER_NAMES, **{command: command for command in commands}}
    nearest = find_nearest(name, meant)
    suggestion = f" (did you mean '{meant[nearest]}'?)" if nearest else ""
    return f"no command '{name}'{suggestion}"


def describe_extra_arguments(arguments: Sequence[str]) -> str:
    """Say which arguments a command does not take."""
    text = f"unexpected argument: {' '.join(arguments)}"
    overrides = [argument for argument in arguments if "=" in argument]
    if not overrides:
        return text
    command = f"hookyard run RUN@last {shlex.join(overrides)}"
    return f"{text}. To continue a run with other values: {command}"


def _describe(error: Any, parameters: Sequence[Any], maybe_overrides: Sequence[str]) -> str:
    if isinstance(error, typer.BadParameter):
        return _describe_value(error)
    if not hasattr(error, "option_name"):
        return _as_clause(error.message)

    flags: dict[str, Any] = {}
    for parameter in parameters:
        flags.update(dict.fromkeys(parameter.opts, parameter))
    name = error.option_name
    if name not in flags:
        return _describe_unknown_flag(name, flags, maybe_overrides)
    if flags[name].is_flag:
        return f"{name} takes no value"
    return f"{name} needs a value"


def _describe_unknown_flag(flag: str, flags: Iterable[str], maybe_overrides: Sequence[str]) -> str:
    nearest = did_you_mean(flag, flags)
    if nearest:
        return f"no flag {flag} ({nearest})"
    override = _make_override(flag, maybe_overrides)
    if override:
        return f"no flag {flag}; to change the experiment, write {override}"
    return f"no flag {flag}"


def _describe_value(error: typer.BadParameter) -> str:
    """Say which value a parameter needs. Typer checks values with pydantic."""
    from pydantic import ValidationError

    parameter: Any = error.param
    is_option = parameter.param_type_name == "option"
    name = parameter.opts[0] if is_option else parameter.metavar
    # Only Typer's error about a missing value has this attribute.
    if hasattr(error, "param_type"):
        return f"{name} is missing"
    if not isinstance(error.__cause__, ValidationError):
        return f"{name}: {_as_clause(error.message)}"

    problem = error.__cause__.errors()[0]
    choices = parameter.type_descriptor.choices
    if choices:
        return _describe_choice(name, problem["input"], choices)
    need = _NEEDS.get(problem["type"])
    if need:
        return f"{name} must be {need.format(**problem.get('ctx', {}))}"
    return f"{name}: {_as_clause(problem['msg'])}"


def _describe_choice(name: str, value: str, choices: Iterable[str]) -> str:
    nearest = did_you_mean(value, choices)
    suggestion = f" ({nearest})" if nearest else ""
    return f"{name} must be one of {', '.join(choices)}, got '{value}'{suggestion}"


def _as_clause(sentence: str) -> str:
    """Return a sentence to go on with after a colon or a comma."""
    return f"{sentence[:1].lower()}{sentence[1:].rstrip('.')}"


def _make_override(flag: str, arguments: Sequence[str]) -> str | None:
    """Return the override that a flag was probably meant as, such as `epochs=3` for
    `--epochs 3`."""
    for argument, following in itertools.pairwise([*arguments, "-"]):
        name, equals, value = argument.partition("=")
        if name == flag:
            if not equals and not following.startswith("-"):
                value = following
            key = _find_key(flag)
            return f"{key}={shlex.quote(value or 'VALUE')}" if key else None
    return None


def _find_key(flag: str) -> str | None:
    """Return the key of an experiment with the name of a flag, or a similar name."""
    from orchestrator.experiment.sections.experiment import Experiment

    if not flag.startswith("--"):
        return None
    first, dot, rest = flag.lstrip("-").replace("-", "_").partition(".")
    known = Experiment.model_fields
    nearest = first if first in known else find_nearest(first, known)
    return f"{nearest}{dot}{rest}" if nearest else None

"""Wrong values of arguments and flags, in Hookyard's words."""

from collections.abc import Iterable
from typing import Any

import typer

from orchestrator.nearest_names import did_you_mean

_REQUIREMENTS = {
    "int_parsing": "an integer",
    "float_parsing": "a number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
"""What a value must be, by the type of pydantic's error."""


def describe_wrong_value(error: typer.BadParameter) -> str:
    """Say which value a parameter needs. Typer checks values with pydantic."""
    from pydantic import ValidationError

    parameter: Any = error.param
    is_flag = parameter.param_type_name == "option"
    name = parameter.opts[0] if is_flag else parameter.metavar
    # Only Typer's error about a missing value has this attribute.
    if hasattr(error, "param_type"):
        return f"{name} is missing"
    if not isinstance(error.__cause__, ValidationError):
        return f"{name}: {make_clause(error.message)}"

    problem = error.__cause__.errors()[0]
    choices = parameter.type_descriptor.choices
    if choices:
        return _describe_wrong_choice(name, problem["input"], choices)
    requirement = _REQUIREMENTS.get(problem["type"])
    if requirement:
        return f"{name} must be {requirement.format(**problem.get('ctx', {}))}"
    return f"{name}: {make_clause(problem['msg'])}"


def _describe_wrong_choice(name: str, value: str, choices: Iterable[str]) -> str:
    nearest = did_you_mean(value, choices)
    suggestion = f" ({nearest})" if nearest else ""
    return f"{name} must be one of {', '.join(choices)}, got '{value}'{suggestion}"


def make_clause(sentence: str) -> str:
    """Return a sentence without its capital and its period, so that a message can go on with it."""
    return f"{sentence[:1].lower()}{sentence[1:].rstrip('.')}"

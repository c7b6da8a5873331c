"""Words for the errors of fields: the reason, the value, and the value to write instead."""

import json
from collections.abc import Sequence
from functools import reduce
from typing import Any

from pydantic import BaseModel, ValidationError

from orchestrator.errors import MISSING_KEY, UNKNOWN_KEY, Problem, shorten
from orchestrator.experiment.fields.field_errors import (
    LIST_TYPES,
    MAPPING_TYPES,
    OBJECT_TYPES,
    OWN_MESSAGE,
    Detail,
    FieldError,
    find_field_errors,
)
from orchestrator.experiment.fields.known_keys import (
    format_keys,
    list_allowed_words,
    list_known_keys,
)
from orchestrator.experiment.fields.unknown_keys import explain_unknown_key
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.nearest_names import did_you_mean
from orchestrator.units import format_count

INTEGER_CODES = ("int_type", "int_from_float")
"""Pydantic's types of the error of a value that must be an integer."""

_EXPECTED = {
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    **dict.fromkeys(INTEGER_CODES, "an integer"),
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "none_required": "null",
    **dict.fromkeys(LIST_TYPES, "a list"),
    **dict.fromkeys(MAPPING_TYPES, "a mapping"),
    **dict.fromkeys(OBJECT_TYPES, "an object that YAML cannot hold"),
    "union_tag_invalid": "one of {expected_tags}",
    **dict.fromkeys(("byte_size", "byte_size_unit"), "bytes, or a size such as 8 GiB or 500 MB"),
}
"""What a value must be, by pydantic's type of the error."""

_RULES = {
    "union_tag_not_found": "must have a `type`",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
}
"""Rules on the properties of a value instead of its type."""

_PLURALS = {"int_type": "integers", "float_type": "numbers", "string_type": "strings"}
"""What a list holds, if a single one is allowed too."""

_PATTERNS = {
    r"^[A-Za-z_]\w*$": "must contain only letters, digits and `_`, and not begin with a digit",
    r"^[\w.-]+$": "must contain only letters, digits, `_`, `-` and `.`",
}
"""Rules by pattern of a string."""

_MAX_PROBLEMS = 50
"""Maximum number of problems reported for one mapping, because finding near names takes time."""


def convert_errors(
    error: ValidationError, model: type[BaseModel], values: Any, path: str
) -> list[Problem]:
    """Return the problems of `values`, given to `model` at `path`: one for each location."""
    errors = find_field_errors(error, values)
    problems = [
        _convert(field_error, model, values, path) for field_error in errors[:_MAX_PROBLEMS]
    ]
    rest = errors[_MAX_PROBLEMS:]
    if rest:
        problems.append(
            Problem(
                reduce(join, rest[0].location, path),
                f"and {format_count(len(rest), 'more problem')} like this",
            )
        )
    # A missing key that an unknown one was meant as is one mistake.
    meant = {problem.meant for problem in problems}
    return [
        problem for problem in problems if problem.code != MISSING_KEY or problem.path not in meant
    ]


def _convert(error: FieldError, model: type[BaseModel], values: Any, path: str) -> Problem:
    if error.code == UNKNOWN_KEY:
        parent = reduce(join, error.location[:-1], path)
        return explain_unknown_key(parent, error, model, values)
    dotted = reduce(join, error.location, path)
    if error.code == MISSING_KEY:
        return Problem(dotted, "is missing", code=MISSING_KEY)

    message = _describe(error)
    first = error.details[0]
    if not _shows_value(first):
        return Problem(dotted, message, code=error.code)
    value = first["input"]
    if first["type"] == "union_tag_invalid":
        dotted = join(dotted, "type")
        value = value["type"]
    suggestion = _suggest_value(error, model, values)
    got = f"{message}, got {_format_value(value)}"
    return Problem(dotted, got, suggestion=suggestion, code=error.code)


def _describe(error: FieldError) -> str:
    """Describe the error in a value. The expectations of a union's branches are joined by `or`."""
    types = [detail["type"] for detail in error.details]
    several = len(set(types)) > 1
    expected: list[str] = []
    for detail in error.details:
        text = _describe_detail(detail)
        if several and detail["type"] == "bool_type":
            text = "must be true, false"
        if several and detail["type"] in LIST_TYPES and types[0] in _PLURALS:
            text = f"must be a list of {_PLURALS[types[0]]}"
        if text not in expected:
            expected.append(text)
    first, *others = expected
    return " or ".join([first, *(text.removeprefix("must be ") for text in others)])


def _describe_detail(detail: Detail) -> str:
    kind = detail["type"]
    context = detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == OWN_MESSAGE:
        return str(context["message"])
    if _is_empty(detail):
        return "must not be empty"
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"must match {context['pattern']}")

    template = f"must be {_EXPECTED[kind]}" if kind in _EXPECTED else _RULES.get(kind)
    if template is None:
        return _adapt_message(str(detail["msg"]))
    return template.format(**{key: _format_limit(limit) for key, limit in context.items()})


def _adapt_message(message: str) -> str:
    """Return pydantic's own message in the form of the others."""
    text = message.replace("Input should", "must", 1).replace("False", "false")
    return text[:1].lower() + text[1:]


def _is_empty(detail: Detail) -> bool:
    kinds = ("too_short", "string_too_short")
    return detail["type"] in kinds and bool(detail["ctx"]["min_length"] == 1)


def _format_limit(limit: Any) -> Any:
    """Write a limit of 1.0 as 1, like the limits of integers."""
    return f"{limit:.15g}" if isinstance(limit, float) else limit


def _shows_value(detail: Detail) -> bool:
    """Return whether the value follows the message: not if it is empty, or the message has it."""
    return detail["type"] not in ("value_error", OWN_MESSAGE) and not _is_empty(detail)


def _suggest_value(error: FieldError, model: type[BaseModel], values: Any) -> str | None:
    detail = error.details[0]
    kind = detail["type"]
    value = detail["input"]
    if kind in MAPPING_TYPES:
        if error.location == ("hooks",):
            return "write each hook by its name, such as ema: {decay: 0.999}"
        # A dict has any keys.
        keys = [] if kind == "dict_type" else list_known_keys(model, error.location, values)
        return _suggest_mapping(value, keys)
    if kind == "string_type":
        return "write it in quotes" if isinstance(value, int | float) else None
    name = detail["ctx"]["tag"] if kind == "union_tag_invalid" else value
    if kind not in ("union_tag_invalid", "literal_error", "enum") or not isinstance(name, str):
        return None
    return did_you_mean(name, list_allowed_words(model, error.location, values))


def _suggest_mapping(value: Any, keys: Sequence[str]) -> str | None:
    main_keys = ["type"] if "type" in keys else keys
    if isinstance(value, str) and len(main_keys) == 1:
        return f"write {{{main_keys[0]}: {shorten(value)}}}"
    return format_keys(keys) if len(keys) > 1 else None


def _format_value(value: Any) -> str:
    is_yaml_word = value is None or isinstance(value, bool)
    text = json.dumps(value) if is_yaml_word else repr(value)
    return shorten(text)

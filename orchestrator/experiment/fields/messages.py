"""Conversion of pydantic's errors to problems, one for each location."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from importlib.resources import files
from itertools import islice
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from hooks import HOOKS
from orchestrator.errors import Problem, did_you_mean, shorten
from orchestrator.experiment.yaml.reader import join

UNKNOWN_KEY = "unknown key"
EXPERIMENT = "experiment"
_EMPTY = "must not be empty"

_NO_LIST = "must be a list"
_LIST_TYPES = ("list_type", "tuple_type", "set_type", "iterable_type")
_MAPPING_TYPES = ("dict_type", "model_type", "model_attributes_type", "dataclass_type")
_OBJECT_TYPES = ("is_instance_of", "is_subclass_of", "callable_type")
_MESSAGES = {
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    **dict.fromkeys(("int_type", "int_from_float"), "must be an integer"),
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "none_required": "must be null",
    **dict.fromkeys(_LIST_TYPES, _NO_LIST),
    **dict.fromkeys(_MAPPING_TYPES, "must be a mapping"),
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "must have a `type`",
    **dict.fromkeys(
        ("byte_size", "byte_size_unit"), "must be bytes, or a size such as 8 GiB or 500 MB"
    ),
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    **dict.fromkeys(_OBJECT_TYPES, "must be an object that YAML cannot hold"),
    "wrong_value": "{message}",
}
"""Messages by pydantic error type. Other errors keep pydantic's message, with "must" for "Input
should"."""

_PATTERNS = {
    r"^[A-Za-z_]\w*$": "must contain only letters, digits and `_`, and not begin with a digit",
    r"^[\w.-]+$": "must contain only letters, digits, `_`, `-` and `.`",
}
"""Messages by pattern of a string."""

_MAX_PROBLEMS = 50
"""Maximum number of problems reported for one mapping, because finding near names takes time."""
_MAX_NAMES = 20
"""Maximum number of keys in a message."""

_BRANCHES = ("one", "list", "word", "group")
"""Tags of unions whose branch depends on the kind of value alone."""


def make_value_error(key: str, message: str) -> PydanticCustomError:
    """Return an error about a key of a model, or about all of it, to raise where the model is
    checked as a whole."""
    return PydanticCustomError("wrong_value", "{message}", {"key": key, "message": message})


@cache
def load_other_systems() -> Mapping[str, Mapping[str, str]]:
    """Return what to write instead of other systems' options, by hook (or `experiment`) and
    lower-case name."""
    tables: dict[str, dict[str, str]] = yaml.safe_load(
        files(__package__).joinpath("other_systems.yaml").read_text()
    )
    del tables["loggers"]
    return tables


def find_options_elsewhere(kind: str) -> Mapping[str, str]:
    """Return the advice for each option of other systems' hook of this kind."""
    return {
        name: advice
        for names, advice in load_other_systems().get(kind, {}).items()
        for name in names.split(", ")
    }


_KINDS = {"Experiment": EXPERIMENT, **{cls.__name__: name for name, cls in HOOKS.items()}}
"""Names of models in the table of other systems."""


def convert_errors(
    error: ValidationError, model: type[BaseModel], values: Any, path: str
) -> list[Problem]:
    """Return the problems of `values`, given to `model` at `path`; errors of a union's branches are
    joined."""
    errors: dict[tuple[int | str, ...], list[Mapping[str, Any]]] = {}
    for detail in error.errors(include_url=False):
        errors.setdefault(locate_error(detail, values), []).append(detail)
    shown = islice(errors.items(), _MAX_PROBLEMS)
    problems = [_convert(location, details, model, values, path) for location, details in shown]
    rest = list(errors)[_MAX_PROBLEMS:]
    if rest:
        problems.append(
            Problem(reduce(join, rest[0], path), f"and {len(rest):,} more problems like this")
        )
    meant = find_meant_keys(problems)
    return [
        problem
        for problem in problems
        if problem.message != "is missing" or problem.path not in meant
    ]


def find_meant_keys(problems: Iterable[Problem]) -> set[str]:
    """Return the paths of the known keys that unknown keys probably are."""
    return {
        join(problem.path.rpartition(".")[0], name)
        for problem in problems
        if problem.message == UNKNOWN_KEY
        for name in re.findall(r"^(?:did you mean '|write )(\w+)", problem.suggestion or "")
    }


def without_refused_nulls(error: ValidationError, values: Any) -> Any:
    """Return the values without the keys whose null is an error: null there means the default."""
    for detail in error.errors(include_url=False):
        location = locate_error(detail, values)
        if location and detail["input"] is None and detail["type"] != "extra_forbidden":
            values = _remove_key(values, location)
    return values


def _remove_key(values: Any, location: Sequence[Any]) -> Any:
    key, *below = location
    if isinstance(values, list):
        return [
            _remove_key(value, below) if below and index == key else value
            for index, value in enumerate(values)
        ]
    changed = {key: _remove_key(values[key], below)} if below else {}
    return {name: value for name, value in values.items() if name != key} | changed


def locate_error(error: Mapping[str, Any], values: Any) -> tuple[int | str, ...]:
    """Return the part of an error's location that is in the data, without the tags and branches of
    unions."""
    location: list[int | str] = []
    for part in error["loc"]:
        is_tag = isinstance(values, dict) and part not in values and values.get("type") == part
        if is_tag or (part in _BRANCHES and not (isinstance(values, dict) and part in values)):
            continue
        inside = (
            part in values
            if isinstance(values, dict)
            else isinstance(values, list) and isinstance(part, int)
        )
        if not inside and error["type"] not in ("missing", "extra_forbidden"):
            break
        location.append(part)
        values = _get_child(values, part)
    key = error["ctx"]["key"] if error["type"] == "wrong_value" else ""
    return (*location, key) if key else tuple(location)


def _get_child(values: Any, part: int | str) -> Any:
    if isinstance(values, list):
        return values[part] if isinstance(part, int) and part < len(values) else None
    return values.get(part) if isinstance(values, dict) else None


def _convert(
    location: tuple[int | str, ...],
    errors: list[Mapping[str, Any]],
    model: type[BaseModel],
    values: Any,
    path: str,
) -> Problem:
    dotted, first = reduce(join, location, path), errors[0]
    if first["type"] == "extra_forbidden":
        return Problem(dotted, UNKNOWN_KEY, suggestion=_suggest_key(location, model, values))
    if first["type"] == "missing":
        return Problem(dotted, "is missing")
    messages = list(dict.fromkeys(map(_format_message, _select_relevant(errors))))
    if len(messages) > 1 and (noun := re.fullmatch(r"must be an? (\w+)", messages[0])):
        messages = [
            f"must be a list of {noun[1]}s" if other == _NO_LIST else other for other in messages
        ]
    message = " or ".join(
        [messages[0], *(other.removeprefix("must be ") for other in messages[1:])]
    )
    message = message.replace("true or false or ", "true, false or ")
    if not message.startswith("must ") or ", got " in message or message == _EMPTY:
        return Problem(dotted, message)
    value = first["input"]
    if first["type"] == "union_tag_invalid":
        dotted, value = join(dotted, "type"), value["type"]
    if first["type"] in _MAPPING_TYPES:
        keys = (
            [] if first["type"] == "dict_type" else _list_known_keys(model, location, values)
        )  # a dict has any keys
        suggestion = _suggest_mapping(value, keys)
    else:
        suggestion = _suggest_value(first)
    return Problem(dotted, f"{message}, got {_format_value(value)}", suggestion=suggestion)


def _select_relevant(errors: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the errors of the branches of a union that the value may have been meant for."""
    kinds = {error["type"] for error in errors}
    if lengths := kinds & {"too_short", "too_long"}:  # it is a list, so not a wrong string
        return [error for error in errors if error["type"] in lengths]
    # A value outside a branch's range was not meant to be a list.
    has_branch = any(
        not kind.endswith(("_type", "_from_float")) for kind in kinds.difference(_OBJECT_TYPES)
    )
    others = (*_OBJECT_TYPES, *(_LIST_TYPES if has_branch else ()))
    return [error for error in errors if error["type"] not in others] or errors


def _suggest_key(location: tuple[int | str, ...], model: type[BaseModel], values: Any) -> str:
    key, known = str(location[-1]), _list_known_keys(model, location[:-1], values)
    advice = (
        find_options_elsewhere(_KINDS.get(model.__name__, "")).get(key.lower())
        if len(location) == 1
        else None
    )
    if ":" in key:
        return "write a space after `:`"
    return (
        advice
        or did_you_mean(key, known)
        or _list_keys(known, f" to {model.__name__}" if len(location) == 1 else "")
    )


def _suggest_mapping(value: Any, keys: Sequence[str]) -> str | None:
    main_keys = ["type"] if "type" in keys else keys
    if isinstance(value, str) and len(main_keys) == 1:
        return f"write {{{main_keys[0]}: {shorten(value)}}}"
    return _list_keys(keys) if len(keys) > 1 else None


def _list_keys(keys: Sequence[str], owner: str = "") -> str:
    if not keys:
        return "it has no keys"
    return (
        f"known{owner}: {', '.join(sorted(keys))}"
        if len(keys) <= _MAX_NAMES
        else "`hookyard schema` lists the keys"
    )


def _suggest_value(error: Mapping[str, Any]) -> str | None:
    """Suggest the nearest allowed value, which pydantic lists as `'a', 'b' or 'c'`, or quotes
    around a number."""
    context, value = error.get("ctx", {}), error["input"]
    if error["type"] == "string_type" and isinstance(value, int | float):
        return "write it in quotes"
    allowed = context.get("expected_tags") or context.get("expected")
    name = context.get("tag", value)
    return (
        did_you_mean(name, re.findall("'([^']*)'", allowed))
        if allowed and isinstance(name, str)
        else None
    )


def _format_message(error: Mapping[str, Any]) -> str:
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    if (error["type"], context.get("min_length")) == ("too_short", 1):
        return _EMPTY
    if error["type"] == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"must match {context['pattern']}")
    template = _MESSAGES.get(error["type"])
    if template is None:
        message = str(error["msg"]).replace("Input should", "must", 1).replace("False", "false")
        return message[:1].lower() + message[1:]
    # A limit of 1.0 is written as 1, like the limits of integers.
    limits = {
        key: f"{value:.15g}" if isinstance(value, float) else value
        for key, value in context.items()
    }
    return template.format(**limits)


def _format_value(value: Any) -> str:
    return shorten(json.dumps(value) if value is None or isinstance(value, bool) else repr(value))


def _list_known_keys(
    model: type[BaseModel], location: Iterable[int | str], values: Any
) -> list[str]:
    for part in location:
        field = map_fields_by_key(model).get(str(part))
        values = _get_child(values, part)
        if (
            field is None
        ):  # a key of a mapping, or an index of a list, of the models of the field before
            continue
        models = list(find_models(field.annotation))
        if not models:
            return []
        kind = values.get("type") if isinstance(values, dict) else None
        by_type = {
            each.model_fields["type"].default: each
            for each in models
            if "type" in each.model_fields
        }
        model = by_type.get(kind, models[0])
    return list(map_fields_by_key(model))


def map_fields_by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by their keys in a file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def find_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation names, including its branches."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from find_models(inner)

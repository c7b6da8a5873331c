"""What pydantic found wrong, in our words: one problem for each place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import islice
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from orchestrator.config.checks.other_systems import options_elsewhere
from orchestrator.config.text.reader import join
from orchestrator.errors import Problem, did_you_mean, shortened

_WORDS = {
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "none_required": "must be null",
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "iterable_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a mapping"),
    "union_tag_invalid": "must have one of the types {expected_tags}",
    "union_tag_not_found": "must say its type",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "needs_python_object": "must be an object that YAML cannot say",
}
"""What is told in other words than pydantic's, whose "Input should be" is "must be" here."""


_MOST = 50
"""Problems that are told of one mapping of a file: to find what each may have meant takes time."""


_BRANCHES = ("one", "list", "word", "group")
"""What branches of a union are called where a value's kind alone says which of them it is."""


def problems_of(
    error: ValidationError, model: type[BaseModel], values: Any, path: str, kind: str | None = None
) -> list[Problem]:
    """The problems of `values`, which were given to `model` at `path`; what the branches of a union say of one place
    is joined. `kind` says of which hook they are, or `experiment`, for names that are other systems'."""
    places: dict[tuple[int | str, ...], list[Mapping[str, Any]]] = {}
    for one in error.errors(include_url=False):
        places.setdefault(_place(one, values), []).append(one)
    problems = [_problem(place, found, model, values, path, kind) for place, found in islice(places.items(), _MOST)]
    rest = list(places)[_MOST:]
    if rest:
        problems.append(Problem(reduce(join, rest[0], path), f"is the first of {len(rest):,} more that are wrong"))
    return problems


def _place(error: Mapping[str, Any], values: Any) -> tuple[int | str, ...]:
    """The part of an error's location that is in the data: pydantic adds the names of union branches, and the tag where
    `type` chooses between models (`scheduler.asha.max_t`), or what kind of value there is does."""
    place: list[int | str] = []
    for part in error["loc"]:
        is_tag = isinstance(values, dict) and part not in values and values.get("type") == part
        if is_tag or (part in _BRANCHES and not (isinstance(values, dict) and part in values)):
            continue
        inside = part in values if isinstance(values, dict) else isinstance(values, list) and isinstance(part, int)
        if not inside and error["type"] not in ("missing", "extra_forbidden"):
            break
        place.append(part)
        values = _inside(values, part)
    return tuple(place)


def _inside(values: Any, part: int | str) -> Any:
    if isinstance(values, list):
        return values[part] if isinstance(part, int) and part < len(values) else None
    return values.get(part) if isinstance(values, dict) else None


def _problem(
    place: tuple[int | str, ...],
    errors: list[Mapping[str, Any]],
    model: type[BaseModel],
    values: Any,
    path: str,
    kind: str | None,
) -> Problem:
    dotted = reduce(join, place, path)
    first = errors[0]
    if first["type"] == "extra_forbidden":
        known = _known(model, place[:-1], values)
        hint = options_elsewhere(kind).get(str(place[0]).lower()) if kind and len(place) == 1 else None
        hint = (
            hint or did_you_mean(str(place[-1]), known) or (f"known: {', '.join(known)}" if known else "none are taken")
        )
        return Problem(dotted, "unknown key", suggestion=hint)
    if first["type"] == "missing":
        return Problem(dotted, "is missing")
    sayable = [one for one in errors if one["type"] != "needs_python_object"] or errors
    wordings = list(dict.fromkeys(_wording(one) for one in sayable))
    joined = " or ".join([wordings[0], *(wording.removeprefix("must be ") for wording in wordings[1:])])
    if not joined.startswith("must "):
        return Problem(dotted, joined)
    return Problem(dotted, f"{joined}, got {_shown(first['input'])}", suggestion=_near(first))


def _wording(error: Mapping[str, Any]) -> str:
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    template = _WORDS.get(error["type"])
    if template is None:
        message = str(error["msg"]).replace("Input should", "must", 1)
        return message[:1].lower() + message[1:]
    return template.format(
        **{key: _shown(value) if isinstance(value, float) else value for key, value in context.items()}
    )


def _near(error: Mapping[str, Any]) -> str | None:
    """The nearest of what is allowed, which pydantic writes as `'a', 'b' or 'c'`."""
    context = error.get("ctx", {})
    allowed = context.get("expected_tags") or context.get("expected")
    name = context.get("tag", error["input"])
    return did_you_mean(name, re.findall("'([^']*)'", allowed)) if allowed and isinstance(name, str) else None


def _shown(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return shortened(text)


def _known(model: type[BaseModel], place: Iterable[int | str], values: Any) -> list[str]:
    """The keys that are allowed at a place inside a model."""
    for part in place:
        field = model.model_fields.get(str(part))
        values = _inside(values, part)
        if field is None:  # a key of a mapping, or an index of a list, of the models of the field before
            continue
        models = list(models_in(field.annotation))
        if not models:
            return []
        tag = values.get("type") if isinstance(values, dict) else None
        model = next(
            (one for one in models if "type" in one.model_fields and one.model_fields["type"].default == tag), models[0]
        )
    return list(model.model_fields)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation names, those of its branches too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)

"""Validation of an experiment's sections, each on its own, so that no mistake hides another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from orchestrator.errors import Problem
from orchestrator.experiment.fields.field_errors import locate_error, without_refused_nulls
from orchestrator.experiment.fields.messages import convert_errors
from orchestrator.experiment.make_task import NO_TASK
from orchestrator.experiment.sections.experiment import Experiment, find_length_problem
from orchestrator.experiment.yaml.plain_values import to_plain_data

_PLACEHOLDERS: dict[str, Any] = {"name": "unnamed", "task": NO_TASK}


@dataclass(frozen=True)
class ValidSections:
    """The sections of an experiment that are valid on their own."""

    data: Mapping[str, Any]
    """The valid sections as they are written, with placeholders for required ones that are not."""
    experiment: Experiment
    """The experiment of these sections."""
    problems: Sequence[Problem]
    """What is wrong with the others."""


def validate_sections(data: Mapping[str, Any]) -> ValidSections:
    """Validate the sections of an experiment, and leave out those that are wrong."""
    plain: dict[str, Any] = to_plain_data(data)
    problems: list[Problem] = []
    while True:
        try:
            return ValidSections(plain, Experiment.model_validate(plain), problems)
        except ValidationError as error:
            rest = without_refused_nulls(error, plain)
            if rest == plain:
                errors = convert_errors(error, Experiment, plain, "")
                problems += [*errors, *_check_length(plain, errors)]
                # Pydantic reports nothing else beside a key that is no text.
                rest = _replace_wrong_sections(plain, error)
            plain = rest


def _check_length(data: Mapping[str, Any], errors: Sequence[Problem]) -> Iterator[Problem]:
    """Yield the problem of a length that is missing or set twice, unless an error is about it."""
    problem = find_length_problem(data.get("epochs"), data.get("steps"))
    mentioned = {error.path for error in errors} | {error.meant for error in errors}
    if problem and mentioned.isdisjoint({"", "epochs", "steps"}):
        yield problem


def _replace_wrong_sections(data: Mapping[str, Any], error: ValidationError) -> dict[str, Any]:
    """Return the sections without errors, with placeholders for the required ones."""
    locations = [locate_error(detail, data) for detail in error.errors(include_url=False)]
    wrong = {location[0] for location in locations if location}
    # A key that is no text, such as a lone surrogate, has an error without a location.
    valid = {key: data[key] for key in Experiment.model_fields if key in data and key not in wrong}
    valid = {**_PLACEHOLDERS, **valid}
    if find_length_problem(valid.get("epochs"), valid.get("steps")):
        valid.update(epochs=2**31, steps=None)
    return valid

"""Instances of dataclasses, made of the values in a config."""

from collections.abc import Mapping
from typing import Any, TypeVar

from orchestrator.errors import raise_problems
from orchestrator.experiment.fields.class_models import make_fields_model
from orchestrator.experiment.fields.field_values import has_lost_default
from orchestrator.experiment.fields.needs import check_needs
from orchestrator.experiment.fields.validation import validate
from orchestrator.user_code.failures import catch_user_errors

T = TypeVar("T")


def construct(cls: type[T], values: Mapping[str, Any], path: str) -> tuple[T, dict[str, Any]]:
    """Create a dataclass instance from values, and return it with all its parameters as plain data.

    Leaves out defaults that a file cannot hold, so that the class sets them again.
    Raises ConfigError with every problem: those of single values below `path`, the class's own
    error at `path`.
    """
    model = make_fields_model(cls, path)
    with catch_user_errors(path):
        checked = validate(model, values, path)
        raise_problems(check_needs(checked, checked, path))
        arguments = {name: getattr(checked, name) for name in checked.model_fields_set}
        omitted = model.model_fields.keys() - checked.model_fields_set
        # Mypy takes classes for unhashable.
        lost = {name for name in omitted if has_lost_default(cls, name)}  # type: ignore[arg-type]
        return cls(**arguments), checked.model_dump(
            mode="json", warnings=False, exclude=lost, fallback=str
        )

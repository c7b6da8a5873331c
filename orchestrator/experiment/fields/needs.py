"""Settings that have an effect only with others, as their `Needs` say."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from hooks.needs import Needs
from orchestrator.errors import Problem
from orchestrator.experiment.yaml.dotted_paths import join


def check_needs(model: BaseModel, settings: BaseModel, path: str = "") -> Iterator[Problem]:
    """Yield a problem for each field that differs from its default and has an unmet need."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        field_path = join(path, name)
        needs = [item for item in field.metadata if isinstance(item, Needs)]
        unmet = [need for need in needs if not need.is_met(settings)]
        if unmet:
            message = f"has no effect {unmet[0].describe_unmet(settings)}; remove it"
            default = field.get_default(call_default_factory=True)
            for key in find_changed_keys(value, default, field_path):
                yield Problem(key, message)
        elif isinstance(value, BaseModel):
            yield from check_needs(value, settings, field_path)


def find_changed_keys(value: Any, default: Any, path: str) -> Iterator[str]:
    """Yield the path of each key that differs from its default, field by field."""
    if isinstance(value, BaseModel) and isinstance(default, BaseModel):
        for name in type(value).model_fields:
            yield from find_changed_keys(
                getattr(value, name), getattr(default, name), join(path, name)
            )
    elif value != default:
        yield path

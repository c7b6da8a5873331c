"""A key, another value for it, and a test of its effect."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.known_keys import map_fields_by_key
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.optim.component import Component

CUDA = "needs a GPU"
"""Reason for a key that the tests do not vary."""


@dataclass
class Key:
    """Another value of a field, and the settings beside which it has an effect."""

    value: Any
    hook: dict[str, Any] = field(default_factory=dict)
    """Other fields of the hook."""
    around: dict[str, Any] = field(default_factory=dict)
    """The experiment."""


def acts(make: Callable[[], str], reference: str, path: str) -> bool:
    """Return whether another value changes the result, or is refused by the name of its key."""
    try:
        return make() != reference
    except ConfigError as refusal:
        return path in str(refusal)


def keys_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, info in map_fields_by_key(model).items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, Model) and inner is not Component:
            yield from keys_of(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}"

"""A key, the other value it is given, and whether that acts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from orchestrator.config.python.wording import fields_by_key
from orchestrator.config.sections.base import Model
from orchestrator.config.sections.experiment import Component
from orchestrator.errors import ConfigError

CUDA = "needs a GPU"
"""Why a key is not shown to act."""


@dataclass
class Key:
    """Another value of a field, and what it matters beside."""

    value: Any
    hook: dict[str, Any] = field(default_factory=dict)
    """Other fields of the hook."""
    around: dict[str, Any] = field(default_factory=dict)
    """The experiment."""


def acts(make: Callable[[], str], reference: str, path: str) -> bool:
    """Whether a key with another value makes something else, or is refused by its name."""
    try:
        return make() != reference
    except ConfigError as refusal:
        return path in str(refusal)


def keys_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, info in fields_by_key(model).items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, Model) and inner is not Component:
            yield from keys_of(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}"

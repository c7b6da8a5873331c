"""The tree of an experiment's keys, in which a key that was written in the wrong place is found."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from pydantic import BaseModel

from orchestrator.config.python.wording import models_in
from orchestrator.config.sections.experiment import Experiment


@cache
def key_paths() -> tuple[str, ...]:
    """Return the dotted path of each key that a model of the experiment declares."""
    return tuple(dict.fromkeys(_paths(Experiment)))


def _paths(model: type[BaseModel], path: str = "", above: tuple[type[BaseModel], ...] = ()) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = f"{path}.{name}" if path else name
        yield inner
        for child in models_in(field.annotation):
            if child not in above:
                yield from _paths(child, inner, (*above, child))

"""Unknown keys: the known key that was meant, or advice where it is an option of another system."""

from typing import Any

from pydantic import BaseModel

from hooks import HOOKS
from orchestrator.errors import FOREIGN_KEY, UNKNOWN_KEY, Problem
from orchestrator.experiment.fields.field_errors import FieldError
from orchestrator.experiment.fields.known_keys import format_keys, list_known_keys
from orchestrator.experiment.fields.other_systems import EXPERIMENT, Advice, find_options_elsewhere
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.nearest_names import find_nearest, suggest


def explain_unknown_key(
    parent: str, error: FieldError, model: type[BaseModel], values: Any
) -> Problem:
    """Return the problem of an unknown key, with the key that was meant.

    Args:
        parent: The path of the mapping with the key in the experiment.
        error: The error of the model.
        model: The model that refused the key.
        values: The values that the model was given.
    """
    *above, last = error.location
    key = str(last)
    path = join(parent, key)
    advice = None if above else _find_advice(model, key)
    if advice is not None:
        meant = join(parent, advice.key) if advice.key else None
        return Problem(path, "unknown key", suggestion=advice.text, code=FOREIGN_KEY, meant=meant)

    known = list_known_keys(model, above, values)
    name, colon, _ = key.partition(":")
    if colon:
        meant = join(parent, name) if name in known else None
        hint = "write a space after `:`"
        return Problem(path, "unknown key", suggestion=hint, code=UNKNOWN_KEY, meant=meant)

    nearest = find_nearest(key, known)
    # A model within another has no name that a user knows.
    model_name = "" if above else model.__name__
    suggestion = suggest(nearest) or format_keys(known, model_name)
    meant = join(parent, nearest) if nearest else None
    return Problem(path, "unknown key", suggestion=suggestion, code=UNKNOWN_KEY, meant=meant)


def _find_advice(model: type[BaseModel], key: str) -> Advice | None:
    """Return what to write instead of an option of another system, in an experiment or a hook that
    ships."""
    kind = EXPERIMENT if _is_experiment(model) else HOOKS.name_of(model)
    return find_options_elsewhere(kind).get(key.lower()) if kind else None


def _is_experiment(model: type[BaseModel]) -> bool:
    """Return whether a model is that of an experiment, which imports this module."""
    name = f"{model.__module__}:{model.__qualname__}"
    return name == "orchestrator.experiment.sections.experiment:Experiment"

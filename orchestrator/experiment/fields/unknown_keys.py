"""Unknown keys: the known key that was meant, or advice where it is an option of another system."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from hooks import HOOKS
from orchestrator.errors import FOREIGN_KEY, UNKNOWN_KEY, Problem
from orchestrator.experiment.fields.field_errors import FieldError
from orchestrator.experiment.fields.known_keys import list_known_keys
from orchestrator.experiment.fields.other_systems import (
    EXPERIMENT,
    find_key_to_write,
    find_options_elsewhere,
)
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.nearest_names import did_you_mean, find_nearest

_KINDS = {"Experiment": EXPERIMENT, **HOOKS.names}
"""Names of models in the table of other systems."""
_MAX_NAMES = 20
"""Maximum number of keys in a message."""


def explain_unknown_key(
    dotted: str, error: FieldError, model: type[BaseModel], values: Any
) -> Problem:
    """Return the problem of an unknown key at a dotted path, with the key that was meant.

    Args:
        dotted: The path of the key in the experiment.
        error: The error of the model.
        model: The model that refused the key.
        values: The values that the model was given.
    """
    *above, last = error.location
    key = str(last)
    known = list_known_keys(model, above, values)
    advice = None
    if ":" in key:
        advice = "write a space after `:`"
    elif not above:
        options = find_options_elsewhere(_KINDS.get(model.__name__, ""))
        advice = options.get(key.lower())

    parent = dotted.removesuffix(key).removesuffix(".")
    if advice:
        written = find_key_to_write(advice)
        meant = join(parent, written) if written else None
        return Problem(dotted, "unknown key", suggestion=advice, code=FOREIGN_KEY, meant=meant)

    owner = "" if above else f" to {model.__name__}"
    suggestion = did_you_mean(key, known) or format_keys(known, owner)
    nearest = find_nearest(key, known)
    meant = join(parent, nearest) if nearest else None
    return Problem(dotted, "unknown key", suggestion=suggestion, code=UNKNOWN_KEY, meant=meant)


def format_keys(keys: Sequence[str], owner: str = "") -> str:
    """Return the known keys as text, or where they are listed if there are many."""
    if not keys:
        return "it has no keys"
    if len(keys) > _MAX_NAMES:
        return "`hookyard schema` lists the keys"
    return f"known{owner}: {', '.join(sorted(keys))}"

"""Write plain data as YAML that reads as the same."""

import math
from collections.abc import Mapping
from typing import Any

import yaml

from orchestrator.experiment.yaml.dialect import (
    CONTROL,
    INTEGERS,
    NO_CHARACTER,
    Dumper,
    has_invisible,
)


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return YAML text that reads as the same data, even if a terminal escapes characters.

    PyYAML leaves some invisible characters as they are. They stand only in double quotes here,
    where an escape means the same character.
    """
    text = yaml.dump(dict(data), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    return "".join(map(_escape_invisible, text)) if has_invisible(text) else text


def _escape_invisible(character: str) -> str:
    return character.encode("unicode_escape").decode() if has_invisible(character) else character


def explain_unwritable(value: Any) -> str | None:
    """Return why this reader would refuse plain data that was written to a file, if so."""
    if isinstance(value, Mapping):
        if any(isinstance(key, str) and CONTROL.search(key) for key in value):
            return "has a key with control characters"
        return explain_unwritable([*value.values()])
    if isinstance(value, list | tuple):
        for item in value:
            reason = explain_unwritable(item)
            if reason:
                return reason
        return None
    if isinstance(value, str) and NO_CHARACTER.search(value):
        return "contains a character that cannot be encoded"
    if isinstance(value, int) and value not in INTEGERS:
        return "integers must fit in 64 bits"
    if isinstance(value, float) and math.isnan(value):
        return "cannot be NaN in a file"
    return None

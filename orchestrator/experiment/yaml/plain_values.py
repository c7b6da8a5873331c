"""Values of Python as the plain data that YAML can hold."""

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from hooks.errors import add_article
from orchestrator.errors import ConfigError
from orchestrator.experiment.yaml.dialect import MAX_DEPTH, TOO_DEEP

_PLAIN_TYPES = (type(None), bool, int, float, str)


def to_plain_data(value: Any, path: str = "") -> Any:
    """Return a copy of data that YAML can hold; raise ConfigError at `path` for anything else."""
    try:
        return _copy(value, 0)
    except RecursionError:
        raise ConfigError.at(path, TOO_DEEP) from None
    except (TypeError, ValueError) as error:
        raise ConfigError.at(path, f"cannot be saved as YAML: {error}") from None


def _copy(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping | list | tuple) and depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, Mapping):
        return {_copy_key(key): _copy(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(inner, depth + 1) for inner in value]

    plain = _copy_scalar(value)
    if isinstance(plain, float) and math.isnan(plain):
        raise ValueError("a number cannot be NaN in a file")
    return plain


def _copy_scalar(value: Any) -> Any:
    if type(value) in _PLAIN_TYPES:
        return value
    # Enums of text or numbers, and other subclasses.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return to_plain(value)


def _copy_key(key: Any) -> str:
    """Return the key of a mapping as YAML writes it."""
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int | float):
        return repr(key)
    raise TypeError(f"keys must be strings, not {type(key).__name__}")


def to_plain(value: Any) -> Any:
    """Convert paths, NumPy scalars and tensors without dimensions to what a config can hold.

    Raises TypeError for anything else.
    """
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        item = value.item()
        if type(item) in _PLAIN_TYPES:
            return item
    raise TypeError(f"{value!r} is {add_article(type(value).__name__)}")

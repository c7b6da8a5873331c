"""`module:name`: how a hook's parameter says which function to call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def callable_at(path: str, field: str) -> Callable[..., Any]:
    """What `module:name` names; raises ValueError, with the hook's field, where it cannot be imported or called."""
    module, _, name = path.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{field}: '{path}' cannot be imported ({error}); write module:callable") from error
    if not callable(found):
        raise ValueError(f"{field}: '{path}' is {type(found).__name__}, not a callable")
    called: Callable[..., Any] = found
    return called

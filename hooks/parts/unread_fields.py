"""Fields that have an effect only with certain values of others."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any


class UnreadField(ValueError):
    """A field is set that has no effect with the other fields."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def refuse_unread(hook: Any, unless: str, *names: str) -> None:
    """Raise UnreadField if one of these fields is not at its default; call it in `__post_init__`."""
    for field in fields(hook):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in names and (value := getattr(hook, field.name)) != default:
            shown = repr(value) if isinstance(value, str) else str(value)
            raise UnreadField(field.name, f"has no effect, got {shown}: it needs {unless}")

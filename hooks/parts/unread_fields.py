"""Fields that matter only beside others."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any


class UnreadField(ValueError):
    """A field has a value that nothing reads, as the other fields are."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def refuse_unread(hook: Any, unless: str, *names: str) -> None:
    """Raises UnreadField where one of these fields has another value than its default: nothing reads them `unless`
    something is said. For `__post_init__`."""
    for field in fields(hook):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in names and (value := getattr(hook, field.name)) != default:
            shown = repr(value) if isinstance(value, str) else str(value)
            raise UnreadField(field.name, f"is read by nothing, got {shown}: it needs {unless}")

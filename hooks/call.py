"""A call of the plan: one hook at one event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hooks.hook import Priority
from hooks.interval import Interval

DEAR_S = 5e-6
"""A call that gives a device work, or waits for it, takes the host longer: giving it one operation does."""


@dataclass
class Call:
    """One hook at one event, with what it has cost so far."""

    name: str
    event: str
    run: Callable[..., None]
    best_effort: bool = False
    pace: Interval | int | None = None
    """How often it is called; None is always."""
    priority: int = Priority.NORMAL
    calls: int = 0
    seconds: Any = 0.0
    """A number, or what becomes one by `float` once a device has told it."""
    made: int = 0
    host_s: float = 200 * DEAR_S
    """Of all calls ever made, on the host; the first 200 count as dear."""

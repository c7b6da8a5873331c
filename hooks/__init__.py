"""Hooks: what happens around a step of a PyTorch training loop. Knows torch; knows neither Ray nor the orchestrator.

What it offers stands in `hooks.table`, `HOOKS` first of all, and is imported when it is first asked for: parts that
need no torch, such as `hooks.metrics.direction`, come without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hooks.table import *  # noqa: F403  # for type checkers alone: all that the table offers is offered here


def __getattr__(name: str) -> Any:
    return getattr(import_module("hooks.table"), name)

"""Hooks: what happens around a step of a PyTorch training loop. Imports torch, and neither Ray nor the orchestrator.

Names come from `hooks.table`, imported at their first use. So `hooks.metrics.direction` can be imported without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hooks.table import *  # noqa: F403  # for type checkers alone: all that the table offers is offered here


def __getattr__(name: str) -> Any:
    return getattr(import_module("hooks.table"), name)

"""Hooks: what happens around a step of a PyTorch training loop. Knows torch; knows neither Ray nor the orchestrator.

`HOOKS` is the one table of the hooks that ship, name to class.
"""

from hooks.hook import EVENTS, Hook, Priority, Ranks
from hooks.plan import HookError, Plan
from hooks.rhythm import Rhythm
from hooks.state import State

HOOKS: dict[str, type[Hook]] = {}

__all__ = ["EVENTS", "HOOKS", "Hook", "HookError", "Plan", "Priority", "Ranks", "Rhythm", "State"]

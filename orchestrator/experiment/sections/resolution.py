"""What was made of an experiment when it was resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Resolution:
    """Result of resolving an experiment; stays in the process, as hooks and tasks have state."""

    is_known: bool = False
    """True once the experiment was resolved."""
    resolved: Any = None
    """The experiment with its task and hooks; None if they are not kept, or a run has taken them."""

    def take(self) -> Any:
        """Return the experiment with its task and hooks, and keep them no longer."""
        resolved = self.resolved
        self.resolved = None
        return resolved

    def __reduce__(self) -> tuple[type[Resolution], tuple[()]]:
        return Resolution, ()

"""Hooks that release something when the run ends or fails."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hooks.state import State


class Cleanup(ABC):
    """Base of hooks that release a file, a setting or a device when the run ends or fails."""

    @abstractmethod
    def close(self) -> None:
        """Release it; no effect when called again."""

    def on_end(self, state: State) -> None:
        self.close()

    def on_exception(self, state: State, error: BaseException) -> None:
        self.close()

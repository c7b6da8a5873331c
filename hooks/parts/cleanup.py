"""What hooks have in common that hold something while the run lasts."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hooks.state import State


class Cleanup(ABC):
    """The part of a hook that lets something go when the run ends or fails: a file, a process's setting, a device."""

    @abstractmethod
    def close(self) -> None:
        """Lets it go; nothing happens where that was done before."""

    def on_end(self, state: State) -> None:
        self.close()

    def on_exception(self, state: State, error: BaseException) -> None:
        self.close()

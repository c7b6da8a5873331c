"""Requests of checkpoints: what a hook wants them for, until they are stored."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hooks.position import Position
from hooks.state import State


@dataclass
class Request:
    """What a hook wants a checkpoint for; nothing if another hook has requested it."""

    is_regular: bool = False
    """True for the interval or for the end: it counts towards `keep`."""
    metrics: list[str] = field(default_factory=list)
    """Metrics for which it is the best."""


@dataclass
class SavedCheckpoint:
    """A checkpoint that is being written, or that is stored."""

    position: Position
    request: Request
    name: str = ""
    """Its name; empty while it is being written."""


class CheckpointRequests:
    """The requests of a hook, and the newest checkpoint.

    A checkpoint may be written in the background, so the hook can request the next one before it is
    stored.
    """

    def __init__(self) -> None:
        self.next = Request()
        """Request of the next checkpoint."""
        self.restored = Request()
        """Request of the checkpoint from which this attempt continues."""
        self.newest_name: str | None = None
        """The newest stored checkpoint of this attempt."""
        self._newest: SavedCheckpoint | None = None
        """The newest checkpoint, which may still be written."""

    def request_regular(self, state: State, reason: str) -> None:
        self.next.is_regular = True
        state.request_checkpoint(reason)

    def request_best(self, state: State, metrics: Iterable[str]) -> None:
        self.next.metrics += metrics
        state.request_checkpoint("best")

    def begin_save(self, position: Position) -> None:
        """Assign the request to the checkpoint that is about to be written."""
        self._newest = SavedCheckpoint(position, self.next)
        self.next = Request()

    def finish_save(self, name: str) -> SavedCheckpoint:
        """Return the checkpoint that was being written, now with its name."""
        assert self._newest is not None
        self._newest.name = name
        self.newest_name = name
        return self._newest

    def resume(self, position: Position, name: str) -> SavedCheckpoint:
        """Return the restored checkpoint, which is now the newest."""
        self._newest = SavedCheckpoint(position, self.restored)
        return self.finish_save(name)

    def find_at(self, position: Position) -> SavedCheckpoint | None:
        """Return the checkpoint of a position."""
        newest = self._newest
        return newest if newest and newest.position == position else None

    def has_weights_of(self, position: Position) -> bool:
        """Return whether no step was made between the newest checkpoint and a position. Its buffers
        may be of an earlier iteration."""
        return self._newest is not None and self._newest.position.has_same_weights(position)

"""A rank's position in its passes over iterable training data, as a checkpoint holds it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class PassPosition:
    """A rank's position in its passes."""

    epoch: int
    """Epoch in which these passes began. If an epoch is a pass, it is the epoch of the position."""
    number: int
    """Number of the pass, from 0."""
    loader_workers: int | None
    """DataLoader workers, whose states the loader's state contains; None for the task's own
    loader."""
    batches: int = 0
    """Batches of the pass that this rank has read."""
    loader: Any = None
    """State of the loader; None at the beginning of a pass, after the last one, and for a loader
    that begins each pass again."""
    is_exhausted: bool = False
    """True if training has ended because a rank had no batch left."""
    random: dict[str, Any] | None = None
    """Random state with which the next batch was fetched, if that was before the checkpoint."""

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the position that a checkpoint holds as plain data."""
        return cls(**data)

    def as_data(self) -> dict[str, Any]:
        """Return the position as plain data, for a checkpoint."""
        return dict(vars(self))

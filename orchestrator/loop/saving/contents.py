"""Contents of a checkpoint besides hooks, random state and the run's position."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hooks.position import Position
from orchestrator.disk.checkpoints.manifest import parse_position
from orchestrator.errors import CheckpointError
from orchestrator.units import format_count


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint to restore on this rank."""

    name: str
    manifest: Mapping[str, Any]
    shared: dict[str, Any]
    """Contents that all ranks share, by file."""
    rank_state: Mapping[str, Any]
    """This rank's own contents."""
    load_rank_state: Callable[[int], Mapping[str, Any]]
    """Function that returns the contents of another rank."""

    @property
    def copied_from(self) -> str | None:
        """Path of the checkpoint of another run of which it is a copy; None if this run saved
        it."""
        path: str | None = self.manifest.get("copied_from")
        return path

    @property
    def world_size(self) -> int:
        """Number of ranks that saved it."""
        return int(self.manifest["world_size"])

    @property
    def position(self) -> Position:
        """Position of the training at which it was saved."""
        return parse_position(self.manifest["position"])

    @property
    def position_of_rank(self) -> Position:
        """The same with the counters of this rank; those of the master if it has not saved any."""
        own = self.rank_state.get("position")
        return self.position if own is None else parse_position(own)

    def read_per_rank(self, key: str, world_size: int) -> dict[str, Any]:
        """Return an entry of this rank's contents.

        Raises CheckpointError if the entry holds states of a different number of ranks.
        """
        rank_state = self.rank_state if key in self.rank_state else self.load_rank_state(0)
        states: dict[str, Any] = rank_state[key]
        if states and self.world_size != world_size:
            raise CheckpointError(
                f"checkpoint '{self.name}' holds {', '.join(states)} of"
                f" {format_count(self.world_size, 'rank')}; set workers.count: {self.world_size}"
            )
        return states


class CheckpointContents(Protocol):
    """Contents of a checkpoint, except for hooks, random state and the run's position."""

    files: tuple[str, ...]
    """Files that every such checkpoint has."""
    unread: tuple[str, ...]
    """Files that a restore does not read."""

    @property
    def mesh(self) -> Any:
        """Device mesh over which tensors are sharded; None if they are not."""

    def collect_shared(self) -> dict[str, Any]:
        """Return the contents that all ranks share, by file."""

    def trim(self, content: dict[str, Any]) -> None:
        """Leave out what a restore can make again, also of what hooks have added."""

    def collect_per_rank(self) -> dict[str, Any]:
        """Return this rank's own contents."""

    def make_details(self) -> dict[str, Any]:
        """Return entries of the manifest."""

    def restore(self, loaded: LoadedCheckpoint) -> None:
        """Restore the contents, after the run's position.

        Raises CheckpointError if they do not fit.
        """

"""Checkpoint contents of a custom loop: the parts that the task has named. Used in workers."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from hooks.errors import add_article
from hooks.state import State
from orchestrator.errors import CheckpointError, TaskError
from orchestrator.loop.saving.contents import LoadedCheckpoint
from orchestrator.loop.saving.optimizer_state import load_state, save_state
from orchestrator.training_session import Part


@dataclass(frozen=True)
class SavedParts:
    """The states of the parts in a checkpoint."""

    checkpoint: str
    """Name of the checkpoint."""
    shared: Mapping[str, Any]
    """States that are equal on all ranks."""
    per_rank: Mapping[str, Any]
    """States of this rank."""


class CheckpointedParts:
    """The parts of one rank: saved in checkpoints, and restored once the task has built them."""

    files: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    mesh = None

    def __init__(self, state: State) -> None:
        self._state = state
        self._shared: Mapping[str, Part] = {}
        self._per_rank: Mapping[str, Part] = {}
        self.are_named = False
        """True once the task has named its parts."""
        self.to_restore: SavedParts | None = None
        """Parts in the checkpoint from which the run continues, until those of the task are
        restored."""

    def name(self, shared: Mapping[str, Part], per_rank: Mapping[str, Part]) -> None:
        """Take the parts that the task has built.

        Raises TaskError for parts that cannot be saved, or a second call.
        """
        for name, part in (*shared.items(), *per_rank.items()):
            if not _has_state(part):
                raise TaskError(
                    f"session.restore() got {add_article(type(part).__name__)} as '{name}'; expected a dict,"
                    " or an object with state_dict() and load_state_dict()"
                )
        if "hooks" in shared:
            raise TaskError(
                "session.restore() got a part 'hooks', the name of the hooks' own file; rename the part"
            )
        if self.are_named:
            raise TaskError(
                "session.restore() is called twice; name all parts at once, when they are built"
            )
        self._shared = dict(shared)
        self._per_rank = dict(per_rank)
        self.are_named = True

    def restore_named(self) -> bool:
        """Restore the parts that the task has named, and return whether there was a checkpoint.

        Raises CheckpointError if the checkpoint does not fit.
        """
        saved = self.to_restore
        if saved is None:
            return False
        self.to_restore = None
        _restore(saved.checkpoint, self._shared, saved.shared, "")
        _restore(saved.checkpoint, self._per_rank, saved.per_rank, "per_rank: ")
        return True

    def collect_shared(self) -> dict[str, Any]:
        return _collect_states(self._shared)

    def trim(self, content: dict[str, Any]) -> None:
        """Leave out nothing."""

    def collect_per_rank(self) -> dict[str, Any]:
        return {"parts": _collect_states(self._per_rank)}

    def make_details(self) -> dict[str, Any]:
        details: dict[str, Any] = {"has_ended": self._state.ended_early}
        if self._per_rank:
            details["per_rank"] = [*self._per_rank]
        return details

    def restore(self, loaded: LoadedCheckpoint) -> None:
        self.to_restore = SavedParts(
            loaded.name,
            {part: state for part, state in loaded.shared.items() if part != "hooks"},
            loaded.read_per_rank("parts", self._state.world_size),
        )
        self._state.ended_early = loaded.manifest["has_ended"]


def _has_state(part: Any) -> bool:
    if isinstance(part, MutableMapping):
        return True
    methods = (getattr(part, method, None) for method in ("state_dict", "load_state_dict"))
    return all(map(callable, methods))


def _collect_states(parts: Mapping[str, Part]) -> dict[str, Any]:
    return {name: _collect_state(part) for name, part in parts.items()}


def _collect_state(part: Part) -> dict[str, Any]:
    if isinstance(part, MutableMapping):
        return dict(part)
    if isinstance(part, Optimizer):
        return save_state(part)
    state: dict[str, Any] = part.state_dict()
    return state


def _restore(name: str, parts: Mapping[str, Part], saved: Mapping[str, Any], group: str) -> None:
    if parts.keys() != saved.keys():
        stored = ", ".join(saved) or "nothing"
        named = ", ".join(parts) or "nothing"
        raise CheckpointError(
            f"checkpoint '{name}' holds {group}{stored}, but session.restore() got"
            f" {group}{named}; name the same parts"
        )
    for key, part in parts.items():
        if isinstance(part, MutableMapping):
            part.clear()
            part.update(saved[key])
            continue
        try:
            if isinstance(part, Optimizer):
                load_state(part, saved[key])
            else:
                part.load_state_dict(saved[key])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"checkpoint '{name}' does not fit the part '{key}': {error}"
            ) from error

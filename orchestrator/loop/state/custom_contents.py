"""A checkpoint's contents for a task with a loop of its own: the parts that it names. Worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch.optim import Optimizer

from orchestrator.errors import CheckpointError, RunError
from orchestrator.loop.state.optimizer_state import load_state
from orchestrator.loop.world import World
from orchestrator.training_session import Part


class KeptParts:
    """The parts of one rank: saved in checkpoints, and restored once the task has built them."""

    files: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    mesh = None

    def __init__(self, world: World) -> None:
        self._world = world
        self._shared: Mapping[str, Part] | None = None
        self._per_rank: Mapping[str, Part] = {}
        self._stored: tuple[str, Mapping[str, Any], Mapping[str, Any]] | None = None
        """The contents still to restore: the checkpoint's name, shared parts, and this rank's own."""
        self.is_over = False
        """Whether the task has returned, and made steps after its last report."""

    @property
    def are_named(self) -> bool:
        """Whether the task has named the parts."""
        return self._shared is not None

    @property
    def waiting(self) -> str | None:
        """The checkpoint whose parts are still to restore."""
        return self._stored[0] if self._stored else None

    def name(self, shared: Mapping[str, Part], per_rank: Mapping[str, Part]) -> bool:
        """Take the parts that the task has built, and restore them; returns whether there was a checkpoint."""
        for name, part in (*shared.items(), *per_rank.items()):
            _check_part(name, part)
        if "hooks" in shared:
            raise RunError("session.restore() got a part 'hooks', the name of the hooks' own file; rename the part")
        if self._shared is not None:
            raise RunError("session.restore() is called twice; name all parts at once, when they are built")
        self._shared, self._per_rank = dict(shared), dict(per_rank)
        stored, self._stored = self._stored, None
        if stored is None:
            return False
        name, saved, saved_per_rank = stored
        _restore(name, self._shared, saved, "")
        _restore(name, self._per_rank, saved_per_rank, "per_rank: ")
        return True

    def shared(self) -> dict[str, Any]:
        return _states(self._shared or {})

    def per_rank(self) -> dict[str, Any]:
        return {"parts": _states(self._per_rank)}

    def details(self) -> dict[str, Any]:
        return {"is_over": self.is_over, **({"per_rank": [*self._per_rank]} if self._per_rank else {})}

    def restore(self, name: str, manifest: Mapping[str, Any], checkpoint: dict[str, Any]) -> None:
        self._stored = name, {part: state for part, state in checkpoint.items() if part != "hooks"}, {}
        self.is_over = manifest["is_over"]

    def restore_rank(
        self, rank_state: Mapping[str, Any], saved_world_size: int, other: Callable[[int], Mapping[str, Any]]
    ) -> None:
        assert self._stored is not None
        name, saved, _ = self._stored
        own = (rank_state if "parts" in rank_state else other(0)).get("parts", {})
        if own and saved_world_size != self._world.world_size:
            raise CheckpointError(
                f"checkpoint '{name}' holds parts of each of {saved_world_size} ranks ({', '.join(own)}), and cannot"
                f" continue with {self._world.world_size}; set workers.count: {saved_world_size}"
            )
        self._stored = name, saved, own


def _states(parts: Mapping[str, Part]) -> dict[str, Any]:
    return {name: dict(part) if isinstance(part, MutableMapping) else part.state_dict() for name, part in parts.items()}


def _check_part(name: str, part: Any) -> None:
    if not isinstance(part, MutableMapping) and not all(
        callable(getattr(part, method, None)) for method in ("state_dict", "load_state_dict")
    ):
        raise RunError(
            f"session.restore() got a {type(part).__name__} as '{name}'; expected an object with state_dict() and"
            " load_state_dict(), or a dict. Put values that change into a dict, and update it before each checkpoint"
        )


def _restore(name: str, parts: Mapping[str, Part], saved: Mapping[str, Any], group: str) -> None:
    if parts.keys() != saved.keys():
        stored, named = (", ".join(names) or "nothing" for names in (saved, parts))
        raise CheckpointError(
            f"checkpoint '{name}' holds {group}{stored}, but session.restore() got {group}{named}; name the same parts"
            " each time"
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
            raise CheckpointError(f"checkpoint '{name}' does not fit the part '{key}': {error}") from error

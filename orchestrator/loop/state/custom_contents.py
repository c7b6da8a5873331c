"""What a checkpoint holds of a task that trains by itself: the parts that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch.optim import Optimizer

from orchestrator.errors import CheckpointError, RunError
from orchestrator.loop.state.optimizer_state import load_state
from orchestrator.loop.world import World
from orchestrator.training_session import Part


class KeptParts:
    """The parts of one rank: taken down for a checkpoint, and put back once the task has built them. Worker process."""

    files: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    mesh = None

    def __init__(self, world: World) -> None:
        self._world = world
        self._shared: Mapping[str, Part] | None = None
        self._per_rank: Mapping[str, Part] = {}
        self._stored: tuple[str, Mapping[str, Any], Mapping[str, Any]] | None = None
        """What is still to be put back: the checkpoint's name, what all ranks have alike, and this rank's own."""

        self.is_over = False
        """Whether the task has returned, and made steps after its last report."""

    @property
    def are_named(self) -> bool:
        """Whether the task has said what a checkpoint holds."""
        return self._shared is not None

    @property
    def waiting(self) -> str | None:
        """The checkpoint whose parts are still to be put back."""
        return self._stored[0] if self._stored else None

    def name(self, shared: Mapping[str, Part], per_rank: Mapping[str, Part]) -> bool:
        """Takes what the task has built, and puts back what is stored of it; whether there was any is returned. Raises
        RunError for what can be in no checkpoint, CheckpointError where it is not what the checkpoint holds."""
        for name, part in (*shared.items(), *per_rank.items()):
            _refuse_other(name, part)
        if "hooks" in shared:
            raise RunError(
                "session.restore() is given a part 'hooks', which is where a checkpoint has what hooks keep; call it"
                " otherwise"
            )
        if self._shared is not None:
            raise RunError("session.restore() is called twice; name all parts at once, when they are built")
        self._shared, self._per_rank = dict(shared), dict(per_rank)
        stored, self._stored = self._stored, None
        if stored is None:
            return False
        name, saved, saved_per_rank = stored
        _put_back(name, self._shared, saved, "")
        _put_back(name, self._per_rank, saved_per_rank, "per_rank: ")
        return True

    def shared(self) -> dict[str, Any]:
        return _states(self._shared or {})

    def per_rank(self) -> dict[str, Any]:
        return {"parts": _states(self._per_rank)}

    def described(self) -> dict[str, Any]:
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
                f"checkpoint '{name}' holds what was each rank's own of {saved_world_size} ranks ({', '.join(own)}),"
                f" and cannot go on with {self._world.world_size}; write workers.count: {saved_world_size}"
            )
        self._stored = name, saved, own


def _states(parts: Mapping[str, Part]) -> dict[str, Any]:
    return {name: dict(part) if isinstance(part, MutableMapping) else part.state_dict() for name, part in parts.items()}


def _refuse_other(name: str, part: Any) -> None:
    if not isinstance(part, MutableMapping) and not all(
        callable(getattr(part, method, None)) for method in ("state_dict", "load_state_dict")
    ):
        raise RunError(
            f"session.restore() is given a {type(part).__name__} as '{name}', and takes what has state_dict() and"
            " load_state_dict(), or a dict; put what changes into a dict, which is brought up to date before each"
            " checkpoint"
        )


def _put_back(name: str, parts: Mapping[str, Part], saved: Mapping[str, Any], group: str) -> None:
    if parts.keys() != saved.keys():
        there, given = (", ".join(names) or "nothing" for names in (saved, parts))
        raise CheckpointError(
            f"checkpoint '{name}' holds {group}{there}, and session.restore() is given {group}{given}; it takes the"
            " same parts each time"
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

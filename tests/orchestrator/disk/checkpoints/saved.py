"""Save checkpoints as the loop does, and simulate a kill at any operation of their storage."""

from typing import Any

import pytest
import torch

from hooks.position import Position, Stage
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.storage import Storage

DETAILS = {"world_size": 1, "metrics": {}, "main_metric": "", "evaluations": {"": ""}}
"""What every manifest says besides the position and the files."""


def weights(value: float) -> dict[str, Any]:
    return {"weight": torch.full((20, 5), value)}


def save(
    store: CheckpointStore,
    name: str,
    step: int,
    value: float = 0.0,
    stage: Stage = Stage.TRAINED,
    skipped: int = 0,
) -> str:
    """Save a checkpoint as the loop does after some steps and `skipped` ones, and return its
    name."""
    name = store.choose_name(name)
    store.discard_unfinished(name)
    entries = store.write_files(
        name, {"model.pt": weights(value), "hooks.pt": {"ema": {"updates": step}}}
    )
    entries |= store.write_files(name, {"rank-0000.pt": {"random": torch.arange(3)}})
    position = Position(step=step, iteration=step + skipped, stage=stage)
    store.commit(name, entries, position, DETAILS)
    return name


OPERATIONS = ("create", "rename", "delete", "state", "tree", "names", "read_chunks", "read")


def kill_at(monkeypatch: pytest.MonkeyPatch, last: int) -> list[str]:
    """Raise KeyboardInterrupt at the storage operation with number `last`; return the growing list
    of operations."""
    done: list[str] = []

    def killing(name: str) -> Any:
        operation = getattr(Storage, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if len(done) == last:
                raise KeyboardInterrupt
            done.append(f"{name} {arguments[1] if len(arguments) > 1 else ''}")
            return operation(*arguments, **options)

        return call

    for name in OPERATIONS:
        monkeypatch.setattr(Storage, name, killing(name))
    return done

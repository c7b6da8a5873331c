"""The training progress of a run at a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Self

from orchestrator.storage.stored_data import validate


class Stage(IntEnum):
    """Progress of the current round."""

    TRAIN = 0
    """Within a training phase, or before the first."""
    TRAINED = 1
    """Training has ended; validation comes next."""
    VALIDATED = 2
    """Validation has ended; the report comes next."""
    REPORTED = 3
    """The round has ended."""


@dataclass(frozen=True)
class Position:
    """Counters of completed work, of the run and of the current epoch."""

    epoch: int = 0
    """Completed passes over the training data."""
    step: int = 0
    iteration: int = 0
    samples: int = 0
    world_samples: int = 0
    offset: int = 0
    """Samples of the current epoch that all ranks together have consumed."""
    phase_iteration: int = 0
    """Iterations of the current epoch that each rank has completed."""
    eval_iterations: Mapping[str, int] = field(default_factory=dict)
    """Iterations of each val phase since the current epoch began."""
    val_iterations: int = 0
    """Validation iterations since the run began."""
    stage: Stage = Stage.TRAIN
    stepped: bool = True
    """False if the last iteration skipped its optimizer step."""

    def __post_init__(self) -> None:
        counts = {**vars(self), "eval_iterations": min(self.eval_iterations.values(), default=0)}
        negative = [name for name, value in counts.items() if value < 0]
        if negative:
            raise ValueError(f"`position.{negative[0]}` is less than 0")

    @classmethod
    def read(cls, entries: Any) -> Self:
        """Read a position from a manifest or an `attempt.json`; raises ValueError if an entry is invalid or missing."""
        values = validate(entries, Mapping[str, Any], "position")
        missing = [field.name for field in fields(cls) if field.name not in values]
        if missing:
            raise ValueError(f"its position has no `{missing[0]}`")
        position: Self = validate(values, cls, "position")
        return position

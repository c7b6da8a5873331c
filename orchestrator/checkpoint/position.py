"""The position: how far a run had come when a checkpoint was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Self

from orchestrator.storage.stored_data import checked


class Stage(IntEnum):
    """What of the present round had been done."""

    TRAIN = 0
    """In the middle of a training phase (or before the first)."""
    TRAINED = 1
    """The training phase has ended; validation is to come."""
    VALIDATED = 2
    """Validation is done; the report is to come."""
    REPORTED = 3
    """The round is over."""


@dataclass(frozen=True)
class Position:
    """Where a run stands: what is completed, and what of the present epoch."""

    epoch: int = 0
    """Completed passes over the training data."""
    step: int = 0
    iteration: int = 0
    samples: int = 0
    world_samples: int = 0
    offset: int = 0
    """Samples of the present epoch that all ranks together have consumed."""
    phase_iteration: int = 0
    """Iterations of the present epoch that each rank has completed."""
    eval_iterations: Mapping[str, int] = field(default_factory=dict)
    """Iterations of each phase of val completed since the present epoch began."""
    val_iterations: int = 0
    """Validation iterations completed since the run began."""
    stage: Stage = Stage.TRAIN
    stepped: bool = True
    """Whether the last iteration made its step, or left it out."""

    @classmethod
    def read(cls, entries: Any) -> Self:
        """From a manifest, which names the stage, or an `attempt.json`, which numbers it; raises ValueError for what is
        none."""
        given = checked(entries, Mapping[str, Any], "position")
        missing = [field.name for field in fields(cls) if field.name not in given]
        if missing:
            raise ValueError(f"its position has no `{missing[0]}`")
        stage = given["stage"]
        numbered = Stage.__members__.get(stage.upper(), stage) if isinstance(stage, str) else stage
        position: Self = checked({**given, "stage": numbered}, cls, "position")
        counts = {**vars(position), "eval_iterations": min(position.eval_iterations.values(), default=0)}
        negative = [name for name, value in counts.items() if value < 0]
        if negative:
            raise ValueError(f"`position.{negative[0]}` is less than 0")
        return position

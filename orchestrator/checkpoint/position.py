"""The position: how far a run had come when a checkpoint was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self


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
    eval_iterations: int = 0
    """Validation iterations completed since the present epoch began."""
    val_iterations: int = 0
    """Validation iterations completed since the run began."""
    stage: Stage = Stage.TRAIN
    stepped: bool = True
    """Whether the last iteration made its step, or left it out."""

    @classmethod
    def read(cls, entries: Mapping[str, Any]) -> Self:
        """From a manifest, which names the stage, or an `attempt.json`, which numbers it."""
        stage = entries["stage"]
        return cls(**{**entries, "stage": Stage[stage.upper()] if isinstance(stage, str) else Stage(stage)})

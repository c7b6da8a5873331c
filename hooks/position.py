"""Positions in a run. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

from annotated_types import Ge

Count = Annotated[int, Ge(0)]


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


@dataclass(frozen=True, order=True)
class Position:
    """A point of a run between two iterations: counters of completed work, of the run and of the
    current epoch.

    Two positions are equal if they have the same iteration and stage. A step alone is not a
    position: the micro-batches of a step share it with the iterations before them that skipped
    their updates, and each of these may change buffers.
    """

    epoch: Count = field(default=0, compare=False)
    """Completed passes over the training data."""
    step: Count = field(default=0, compare=False)
    step_iteration: Count = field(default=0, compare=False)
    """Iteration that made the last step; the iterations after it made no update."""
    iteration: Count = 0
    samples: Count = field(default=0, compare=False)
    world_samples: Count = field(default=0, compare=False)
    offset: Count = field(default=0, compare=False)
    """Samples of the current epoch that all ranks together have consumed."""
    phase_iteration: Count = field(default=0, compare=False)
    """Iterations of the current epoch that each rank has completed."""
    eval_iterations: Mapping[str, Count] = field(default_factory=dict, compare=False)
    """Iterations of each val phase since the current epoch began."""
    val_iterations: Count = field(default=0, compare=False)
    """Validation iterations since the run began."""
    stage: Stage = Stage.TRAIN

    def has_same_weights(self, other: "Position") -> bool:
        """Return whether no optimizer step lies between two positions of a run; buffers may
        differ."""
        return self.step == other.step

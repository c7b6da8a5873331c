"""The parts of a training that a run owns, and those that it shares with other runs."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from orchestrator.disk.checkpoints.training_files import TrainingFiles


@dataclass(frozen=True)
class Membership:
    """A run's place among the runs of a training; by default it is the only one."""

    index: int = 0
    """Number of the run. The first one restores the training."""
    own_hooks: Collection[str] | None = None
    """Names of the hooks that belong to this run alone, not to the training; None for all."""
    own_fields: AbstractContextManager[None] = field(default_factory=nullcontext)
    """Context in which the state has this run's own fields."""
    hook_metrics: Mapping[str, Any] = field(default_factory=dict)
    """Metrics that hooks of the training added to the reports of other runs since the last
    training phase."""
    training_files: TrainingFiles | None = None
    """Files of the training that another run has already stored in a checkpoint."""


ALONE = Membership()

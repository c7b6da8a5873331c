"""What a run has for itself in a training that it may share with other runs."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from orchestrator.disk.checkpoints.training_files import TrainingFiles


@dataclass(frozen=True)
class RunShare:
    """A run's share in a training. By default, the run does not share the training."""

    own_hooks: Collection[str]
    """Names of the hooks that belong to this run alone."""
    index: int = 0
    """Number of the run, among those that share the training."""
    own_fields: AbstractContextManager[None] = nullcontext()
    """Context in which the state has this run's own fields."""
    training_files: TrainingFiles | None = None
    """Files of the training that a run has already stored."""
    hook_metrics: Mapping[str, Any] = field(default_factory=dict)
    """Metrics that the training's hooks have added to the report of one run, for all runs."""

    @property
    def is_leader(self) -> bool:
        """True if the training's rows and hooks are those of this run."""
        return self.index == 0

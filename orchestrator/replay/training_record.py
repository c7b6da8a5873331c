"""The record of a training, by which two trainings are compared."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.replay.digests import Value


@dataclass
class TrainingRecord:
    """The samples, losses and states of a training on one rank, by iteration. Picklable."""

    samples: dict[int, str] = field(default_factory=dict)
    """Digest of each batch."""
    losses: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Metrics of the reports after an iteration."""
    state: dict[int, dict[str, Value]] = field(default_factory=dict)
    """Values by path when training went on after a checkpoint."""
    end: dict[str, str] = field(default_factory=dict)
    """Weights, buffers, optimizers and random states at the end."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    stopped: Sequence[str] = ()
    """Reasons for an early end."""
    is_iterable: bool = False
    """Whether the training data is iterable, which continues only with as many DataLoader workers as
    before."""

    @property
    def iterations(self) -> int:
        """Number of the last training iteration."""
        return max(self.losses, default=0)

"""The report: what the loop hands up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """What the loop hands up at the end of each round of training and validation, on every rank at the same places.

    Made in each worker process, read wherever the run is driven from.
    """

    metrics: dict[str, Any]
    """Counters and the values of the phases, the same on all ranks but for what hooks added."""
    checkpoint: str | None = None
    """The newest stored checkpoint."""
    stopped: tuple[str, ...] = field(default=())
    """Why the run ends here, where somebody asked it to."""
    interrupted: bool = False
    """True when the run was asked from outside to stop and can be resumed."""
    final: bool = False
    """True for the last report of the run."""
    cut_short: bool = False
    """True where the run ends in the middle of training: the metrics hold no values of a whole phase."""
    phases: tuple[str, ...] = ("train",)
    """The phases the run has, whether or not this report is of them."""
    member: int = 0
    """Which of the runs that share a training it is of, from 0."""

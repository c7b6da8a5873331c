"""The best report of a run as `run.json` has it. Imports neither ray, torch nor pandas."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator import units
from orchestrator.storage.validation import validate


@dataclass(frozen=True)
class Best:
    """The best report of a run by its main metric, and the checkpoint labeled `best`."""

    metric: str
    mode: str
    value: float
    epoch: int
    """Epoch of the report, from 0."""
    step: int
    iteration: int
    checkpoint: str | None = None
    """Name of the checkpoint; None if none is stored."""
    checkpoint_value: float | None = None
    """Value of the metric at the checkpoint, which may have been saved at another position."""
    diverged: str = ""
    """Description of a divergence; empty if there was none."""
    checkpoint_iteration: int | None = None
    """Training iteration of the checkpoint; None if no checkpoint is stored."""

    def __str__(self) -> str:
        place = f"epoch {units.number_epoch(self.epoch)}, step {self.step}"
        if self.diverged:
            place += f"; diverged: {self.diverged}"
        reached = f"{self.metric} {units.format_value(self.metric, self.value)} ({place})"
        if self.checkpoint is None:
            return f"{reached}, without a stored checkpoint"
        if self.checkpoint_iteration == self.iteration:
            return f"{reached}, in the checkpoint {self.checkpoint}"
        stored = units.format_value(self.metric, self.checkpoint_value) or "unknown"
        return f"{reached}, without a checkpoint; the one labeled best is {self.checkpoint}, with {stored}"

    @property
    def score(self) -> float:
        """The value by which the run is compared with others."""
        return self.value

    @property
    def place(self) -> str:
        """The checkpoint, with its trial in a sweep; empty if there is neither."""
        return self.checkpoint or ""


@dataclass(frozen=True, kw_only=True)
class BestTrial(Best):
    """The best report of a sweep's best trial."""

    trial: str

    @property
    def place(self) -> str:
        return f"{self.trial}/{self.checkpoint}" if self.checkpoint else self.trial


@dataclass(frozen=True, kw_only=True)
class BestConfiguration(BestTrial):
    """The best report of the best trial of a sweep's best configuration, which several trials
    repeat."""

    configuration: int
    """Number of the configuration."""
    mean: float
    """Mean of its trials' best values."""
    description: str
    """The mean with its spread."""

    @property
    def score(self) -> float:
        return self.mean


def read_best(entry: Mapping[str, Any] | None) -> Best | None:
    """Return the content of the entry `best`; raises ValueError."""
    if entry is None:
        return None
    kind: type[Best] = Best
    if isinstance(entry, Mapping) and "trial" in entry:
        kind = BestConfiguration if "configuration" in entry else BestTrial
    return validate(entry, kind, "best")

"""The surroundings of a loop: rank, storage and display."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hooks.loop_services import Display
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.media import MediaWriter
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.world import World


@dataclass(frozen=True)
class Limits:
    """Limits of a training that repeats or tries only a part of a run. By default there are
    none."""

    last_iteration: float = math.inf
    """Training iteration after which the run is interrupted without a checkpoint, even between the
    micro-batches of a step."""
    epoch_iterations: float = math.inf
    """Training iterations after which an epoch ends."""
    evaluated_batches: int | None = None
    """Number of batches that each pass over `val` or `test` uses on a rank; None for all."""


@dataclass(frozen=True)
class RunContext:
    """Rank, storage and display of a loop. By default one rank of a run that writes nothing. Used
    in workers."""

    world: World = field(default_factory=World)
    recorder: Recorder = field(default_factory=Recorder)
    store: CheckpointStore | None = None
    """Checkpoint store; None saves and restores no checkpoints."""
    saves: bool = True
    """Whether checkpoints are saved; False only restores those in the store."""
    artifacts: Path = Path(".")
    """Local folder for files that hooks write."""
    send_artifacts: Callable[[], None] = lambda: None
    """Function that uploads these files to the run's storage."""
    media: MediaWriter = field(default_factory=MediaWriter)
    display: Display | None = None
    config: Mapping[str, Any] | None = None
    """Resolved experiment of a trial, including its section `sweep`; None if it is the experiment
    itself."""
    name: str | None = None
    """Name of the run; None for the name of the experiment."""
    stop_requested: Callable[[], bool] = lambda: False
    """Function that returns whether this rank is interrupted."""
    limits: Limits = Limits()

    def make_state_fields(self, experiment: Experiment) -> dict[str, Any]:
        """Return the fields of a run's state that follow from its context and its experiment."""
        config = experiment.model_dump(mode="json") if self.config is None else self.config
        return {
            **asdict(self.world),
            "artifacts": self.artifacts,
            "display": self.display,
            "config": config,
            "name": experiment.name if self.name is None else self.name,
            "checkpoints": self.store,
            "recent": self.recorder.recent,
            "media": self.media,
        }

"""The context of a loop: its arguments other than task, experiment and hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hooks.state import Display
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.sections.experiment import Experiment
from orchestrator.loop.world import World
from orchestrator.stats.write.recorder import Recorder


@dataclass(frozen=True)
class RunContext:
    """Rank, storage and display of a loop. By default one rank of a run that writes nothing. Used in workers."""

    world: World = field(default_factory=World)
    recorder: Recorder = field(default_factory=Recorder)
    store: CheckpointStore | None = None
    """Checkpoint store; None saves no checkpoints."""
    artifacts: Path = Path(".")
    """Local folder for files that hooks write."""
    send_artifacts: Callable[[], None] = lambda: None
    """Function that uploads these files to the run's storage."""
    display: Display | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """Resolved experiment of a trial, including its section `sweep`; empty if it is `experiment` itself."""
    name: str = ""
    """Name of the run; empty for the name of the experiment."""
    stop_requested: Callable[[], bool] = lambda: False
    """Function that returns whether this rank is interrupted."""

    def process_fields(self) -> dict[str, Any]:
        world = self.world
        return {
            "rank": world.rank,
            "world_size": world.world_size,
            "local_rank": world.local_rank,
            "node": world.node,
            "device": world.device,
        }

    def run_fields(self, experiment: Experiment) -> dict[str, Any]:
        return {
            "artifacts": self.artifacts,
            "display": self.display,
            "config": self.config or experiment.model_dump(mode="json"),
            "name": self.name or experiment.name,
            "checkpoints": self.store,
            "recent": self.recorder.recent,
        }

"""The run around a loop: its arguments beside task, experiment and hooks."""

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
    """The place of a loop, and of its files. By default one rank of a run that keeps nothing. Used in workers."""

    world: World = field(default_factory=World)
    recorder: Recorder = field(default_factory=Recorder)
    store: CheckpointStore | None = None
    """Store of the checkpoints; without one there are none."""
    artifacts: Path = Path(".")
    """Local folder for files of hooks."""
    send_artifacts: Callable[[], None] = lambda: None
    """Uploads these files to the run's storage."""
    display: Display | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """The experiment as plain data, with a trial's section `sweep`; empty for the experiment alone."""
    name: str = ""
    """Name of the run; empty for the experiment's."""
    stop_requested: Callable[[], bool] = lambda: False
    """Returns whether somebody outside asks this rank to stop."""

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

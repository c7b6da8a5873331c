"""The run around a loop: all that a loop is given beside its task, its experiment and its hooks."""

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
    """Where a loop runs and where what it makes goes; by itself one rank of a run that keeps nothing. Worker
    process."""

    world: World = field(default_factory=World)
    recorder: Recorder = field(default_factory=Recorder)
    store: CheckpointStore | None = None
    """Where checkpoints are kept; without one none are made."""
    artifacts: Path = Path(".")
    """The local folder that hooks write to."""
    send_artifacts: Callable[[], None] = lambda: None
    """Carries what they wrote to where the run lies."""
    display: Display | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """The experiment as plain data, with the section `sweep` that a trial is of; where it is empty, the experiment
    alone."""
    name: str = ""
    """The run's; where it is empty, the experiment's."""
    stop_asked: Callable[[], bool] = lambda: False
    """Whether somebody outside wants this rank to stop."""

    def hook_fields(self, experiment: Experiment) -> dict[str, Any]:
        """What hooks see of it in their state, by the state's fields."""
        world = self.world
        return {
            "rank": world.rank,
            "world_size": world.world_size,
            "local_rank": world.local_rank,
            "node": world.node,
            "device": world.device,
            "artifacts": self.artifacts,
            "display": self.display,
            "config": self.config or experiment.model_dump(mode="json"),
            "name": self.name or experiment.name,
            "checkpoints": self.store,
        }

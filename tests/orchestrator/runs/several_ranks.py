"""Runs that several gloo ranks train."""

from collections.abc import Sequence
from pathlib import Path

from orchestrator import Experiment
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.session import Session
from orchestrator.experiment.load import to_yaml
from orchestrator.loop.world import World
from orchestrator.runs.result import Run
from tests.ranks import on_ranks


def create(experiment: Experiment, root: Path, name: str) -> Assignment:
    """Create a run; return what its ranks are to do."""
    folder = create_run(root, name, to_yaml(experiment), source=experiment.source)
    return Assignment(experiment.source, folder.location)


def train(rank: int, world_size: int, assignments: Sequence[Assignment]) -> None:
    """Carry out assignments on one rank."""
    for assignment in assignments:
        list(Session(assignment, World(rank, world_size, rank)).reports())


def train_on_ranks(world_size: int, root: Path, **experiments: Experiment) -> list[Run]:
    """Train runs of these names in the same processes."""
    assignments = [create(experiment, root, name) for name, experiment in experiments.items()]
    on_ranks(train, world_size, assignments)
    return [Run(RunFolder(assignment.location)) for assignment in assignments]

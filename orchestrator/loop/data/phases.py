"""The data of all phases: train, val and test. Runs in workers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hooks.metrics.names import PHASES, list_phases
from orchestrator.errors import raise_problems
from orchestrator.experiment.checks.data_keys import find_key_problems
from orchestrator.experiment.checks.datasets import is_map_style
from orchestrator.experiment.checks.phases import PHASES_OF_DATA, check_meters, check_phases
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.iterable import IterableData
from orchestrator.loop.data.map_style import MapStyleData
from orchestrator.loop.data.phase_data import PhaseContext, PhaseData
from orchestrator.loop.step.transfer import to_device
from orchestrator.loop.task_errors import require_type
from orchestrator.loop.world import World
from orchestrator.randomness import seeded
from orchestrator.task import Task

DataOf = Callable[[Task, Experiment, World], Mapping[str, Any]]
"""Function that returns the data of a task for a rank."""


def data_from_task(task: Task, experiment: Experiment, world: World) -> Mapping[str, Any]:
    """Return the task's own data; raises TaskError unless it is a mapping."""
    data: Mapping[str, Any] = require_type(task.data, task.data(), Mapping, PHASES_OF_DATA)
    return data


class Data:
    """The data of all phases on this rank, whose tensors go to a `device`."""

    def __init__(self, phases: Mapping[str, PhaseData], device: torch.device) -> None:
        self._device = device
        self.phases = phases
        self.train = phases["train"].as_training_data()
        self.loaders = {phase: data.loader for phase, data in phases.items()}
        """Loaders by phase, for hooks."""

    def phase_names(self, kind: str) -> list[str]:
        """Return the val or test phases, in the order in which they run."""
        return list_phases(kind, self.phases)

    def sizes(self) -> dict[str, int]:
        """Return the number of samples of each phase whose size is known."""
        return {phase: data.size for phase, data in self.phases.items() if data.size is not None}

    def close(self) -> None:
        """Release the loaders and their processes, which the garbage collector would do late."""
        self.loaders.clear()
        for data in self.phases.values():
            data.close()

    def first_sample(self, phase: str) -> Any:
        """Return a batch of a phase's first sample, on the device; the same on each rank."""
        return to_device(self.phases[phase].first_sample(), self._device)

    def fresh_batches(self, phase: str, *, shuffled: bool = False) -> Iterator[Any]:
        """Iterate once over this rank's batches of a phase, on the device.

        They are the same each time. This does not affect the training's order and random numbers.
        """
        return (
            to_device(batch, self._device)
            for batch in self.phases[phase].fresh_batches(shuffled=shuffled)
        )


def build_data(
    task: Task, experiment: Experiment, world: World, data_of: DataOf = data_from_task
) -> Data:
    """Return the data of a task on this rank; collective. Raises ConfigError for wrong data."""
    datasets = load_datasets(task, experiment, world, data_of)
    return Data(build_phases(task, experiment, world, datasets, data_of), world.device)


def load_datasets(
    task: Task, experiment: Experiment, world: World, data_of: DataOf
) -> dict[str, Any]:
    """Return the datasets of a task, which fit the experiment; raises ConfigError if not."""
    datasets = dict(data_of(task, experiment, world))
    check_phases(task, datasets)
    raise_problems(find_key_problems(experiment, task, datasets))
    return datasets


def build_phases(
    task: Task,
    experiment: Experiment,
    world: World,
    datasets: Mapping[str, Any],
    data_of: DataOf,
) -> dict[str, PhaseData]:
    """Return the data of each phase, in the order in which they run; collective."""
    generator = torch.Generator()
    phases = {}
    for kind in PHASES:
        for phase in list_phases(kind, datasets):
            context = PhaseContext(task, phase, experiment, world, generator)
            phases[phase] = _build_phase(context, datasets[phase], data_of)
    return phases


def _build_phase(context: PhaseContext, dataset: Any, data_of: DataOf) -> PhaseData:
    world = context.world
    if is_map_style(dataset):
        data = MapStyleData(context, dataset)
        check_meters(context.experiment, context.task, context.phase, data.size, world.world_size)
        return data

    def build_again() -> Any:
        with seeded(context.experiment.seed):
            single = World(device=world.device)
            return data_of(context.task, context.experiment, single)[context.phase]

    return IterableData.build(context, dataset, build_again)

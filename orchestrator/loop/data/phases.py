"""The phases' data: what a task gives for train, val and test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from hooks import Rhythm
from orchestrator.config.experiment import Experiment
from orchestrator.errors import ConfigError, Problem
from orchestrator.loop.data.indexed import Indexed
from orchestrator.loop.data.kinds import PhaseData
from orchestrator.loop.transfer import to_device
from orchestrator.loop.world import World
from orchestrator.task import Task


class Data:
    """The data of all phases on this rank. Worker process."""

    def __init__(self, task: Task, experiment: Experiment, world: World) -> None:
        self._device = world.device
        datasets: dict[str, Any] = dict(task.data())
        if "train" not in datasets:
            raise ConfigError([Problem("task", f"{type(task).__name__}.data() gives no 'train', only {sorted(datasets)}")])
        for phase, dataset in datasets.items():
            _check(phase, dataset)
        _refuse_unread(task, experiment, datasets)
        generator = torch.Generator()
        self.phases: dict[str, PhaseData] = {
            phase: Indexed(task, datasets[phase], phase, experiment, world, generator)
            for phase in ("train", "val", "test")
            if phase in datasets
        }
        self.train = self.phases["train"]
        self.loaders = {phase: data.loader for phase, data in self.phases.items()}
        """Phase to its loader, for hooks."""

    def close(self) -> None:
        """Lets the loaders go, and with them their processes: left to the garbage collector, these end late and slowly."""
        self.loaders.clear()
        for data in self.phases.values():
            data.close()

    def first_sample(self, phase: str) -> Any:
        """A batch of the first sample of a phase, on the device, the same on each rank and each time."""
        return to_device(self.phases[phase].first_sample(), self._device)

    def fresh_batches(self, phase: str, *, shuffled: bool = False) -> Iterator[Any]:
        """This rank's batches of a phase once, on the device, the same each time: in the order of the dataset, or
        shuffled; neither the training order nor its random numbers are disturbed."""
        return (to_device(batch, self._device) for batch in self.phases[phase].fresh_batches(shuffled=shuffled))


def _refuse_unread(task: Task, experiment: Experiment, datasets: dict[str, Any]) -> None:
    """Raises ConfigError for what is said of evaluations that there are none of."""
    default = Experiment.model_fields["validate_every"].default
    unread = {
        "validate_every": "val" not in datasets and experiment.validate_every not in (default, Rhythm(0)),
        "loader.eval_batch_size": len(datasets) == 1 and experiment.loader.eval_batch_size is not None,
    }
    message = f"is read by nothing: {type(task).__name__}.data() gives {' and '.join(datasets)} alone"
    if any(unread.values()):
        raise ConfigError([Problem(path, message) for path, is_unread in unread.items() if is_unread])


def _check(phase: str, dataset: Any) -> None:
    if phase not in ("train", "val", "test"):
        raise ConfigError([Problem("task", f"data() gives a phase '{phase}'; phases are train, val and test")])
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError([Problem("task", f"the {phase} dataset ({type(dataset).__name__}) has no length or no index; a map-style dataset is needed")])

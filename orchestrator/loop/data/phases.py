"""The data of all phases: train, val and test. Runs in workers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hooks import Interval
from hooks.metrics.names import PHASES, phases_of
from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.checks.data import PHASES_OF_DATA, check_phases, is_map_style
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.iterable import IterableData
from orchestrator.loop.data.iterable_reader import is_loader
from orchestrator.loop.data.map_style import MapStyleData
from orchestrator.loop.data.phase_data import PhaseContext, PhaseData
from orchestrator.loop.step.transfer import to_device
from orchestrator.loop.task_errors import check_type
from orchestrator.loop.world import World
from orchestrator.randomness import seeded
from orchestrator.task import Task

DataOf = Callable[[Task, Experiment, World], Mapping[str, Any]]
"""Function that returns the data of a task for a rank."""


def data_from_task(task: Task, experiment: Experiment, world: World) -> Mapping[str, Any]:
    """Return the task's own data; raises TaskError unless it is a mapping."""
    data: Mapping[str, Any] = check_type(task.data, task.data(), Mapping, PHASES_OF_DATA)
    return data


class Data:
    """The data of all phases on this rank."""

    def __init__(
        self, task: Task, experiment: Experiment, world: World, data_of: DataOf = data_from_task
    ) -> None:
        self._device = world.device
        datasets = dict(data_of(task, experiment, world))
        check_phases(task, datasets)
        _check_no_unread_keys(task, experiment, datasets)
        generator = torch.Generator()

        def build(phase: str) -> PhaseData:
            dataset = datasets[phase]
            context = PhaseContext(task, phase, experiment, world, generator)
            if is_map_style(dataset):
                return MapStyleData(context, dataset)

            def build_again() -> Any:
                with seeded(experiment.seed):
                    return data_of(task, experiment, World(device=world.device))[phase]

            return IterableData(context, dataset, build_again)

        self.phases: dict[str, PhaseData] = {}
        for kind in PHASES:
            for phase in phases_of(kind, datasets):
                self.phases[phase] = build(phase)
        self.train = self.phases["train"]
        self.loaders = {phase: data.loader for phase, data in self.phases.items()}
        """Loaders by phase, for hooks."""

    def phase_names(self, kind: str) -> list[str]:
        """Return the val or test phases, in the order in which they run."""
        return phases_of(kind, self.phases)

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


def _check_no_unread_keys(task: Task, experiment: Experiment, datasets: dict[str, Any]) -> None:
    """Raise ConfigError for keys about data that the task does not have."""
    train = datasets["train"]
    if not is_map_style(train) and experiment.workers.min_count < experiment.workers.max_count:
        raise ConfigError.at(
            "workers.count",
            f"must be one number, as the train data is iterable, got {experiment.workers.count}",
        )
    unread = [
        *_find_keys_of_iterable_data(experiment, train),
        *_find_keys_of_loaders(task, experiment, datasets),
        *_find_keys_of_evaluations(task, experiment, datasets),
    ]
    if unread:
        raise ConfigError([Problem(path, f"has no effect: {reason}") for path, reason in unread])


def _find_keys_of_iterable_data(experiment: Experiment, train: Any) -> Iterator[tuple[str, str]]:
    """Yield keys for iterable datasets, with the reason why they have no effect."""
    if not is_map_style(train):
        return
    reason = f"the train data ({type(train).__name__}) is map-style, so an epoch is one pass over its samples"
    if experiment.epoch_steps is not None:
        yield "epoch_steps", reason
    if experiment.loader.on_exhausted != "restart":
        yield "loader.on_exhausted", reason


def _find_keys_of_loaders(
    task: Task, experiment: Experiment, datasets: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield keys for loaders, which the loop makes for each phase unless the task returns one."""
    options = experiment.loader
    loaded = {phase for phase, data in datasets.items() if not _is_own_loader(data)}
    loads_evaluation = bool(loaded - {"train"})
    sets_eval_size = options.eval_batch_size is not None
    sets_size = experiment.batch_size != Experiment.model_fields["batch_size"].default
    reason = f"{type(task).__name__}.data() returns its own loaders; set it there"
    if sets_size and "train" not in loaded and (not loads_evaluation or sets_eval_size):
        yield "batch_size", reason
    if options.num_workers != 0 and not loaded:
        yield "loader.num_workers", reason
    if options.pin_memory is not None and not loaded:
        yield "loader.pin_memory", reason
    if options.drop_last and "train" not in loaded:
        yield "loader.drop_last", reason
    if sets_eval_size and len(datasets) > 1 and not loads_evaluation:
        yield "loader.eval_batch_size", reason


def _is_own_loader(data: Any) -> bool:
    return is_loader(data) and not hasattr(data, "made_by_engine")


def _find_keys_of_evaluations(
    task: Task, experiment: Experiment, datasets: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield keys for evaluations, which need data."""
    reason = f"{type(task).__name__}.data() returns only {' and '.join(datasets)}"
    if experiment.loader.eval_batch_size is not None and len(datasets) == 1:
        yield "loader.eval_batch_size", reason
    default = Experiment.model_fields["validate_every"].default
    is_set = experiment.validate_every not in (default, Interval(0))
    if is_set and not phases_of("val", datasets):
        yield "validate_every", reason

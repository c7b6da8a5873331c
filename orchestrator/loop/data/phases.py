"""The data of all phases: train, val and test. Runs in workers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hooks import Interval
from hooks.metrics.names import PHASES, phases_of
from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.checks.data import PHASES_OF_DATA, check_phases, is_indexed
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.indexed import Indexed
from orchestrator.loop.data.phase_data import PhaseData
from orchestrator.loop.data.stream import Stream, is_loader
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
            if is_indexed(dataset):
                return Indexed(task, dataset, phase, experiment, world, generator)

            def build_again() -> Any:
                with seeded(experiment.seed):
                    return data_of(task, experiment, World(device=world.device))[phase]

            return Stream(task, dataset, phase, experiment, world, generator, build_again)

        self.phases = {
            phase: build(phase) for kind in PHASES for phase in phases_of(kind, datasets)
        }
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
        """Release the loaders and their processes; the garbage collector would do so late and
        slowly."""
        self.loaders.clear()
        for data in self.phases.values():
            data.close()

    def first_sample(self, phase: str) -> Any:
        """Return a batch of a phase's first sample, on the device; the same on each rank and each
        time."""
        return to_device(self.phases[phase].first_sample(), self._device)

    def fresh_batches(self, phase: str, *, shuffled: bool = False) -> Iterator[Any]:
        """Iterate once over this rank's batches of a phase, on the device; the same batches each
        time.

        This does not affect the training's order and random numbers.
        """
        return (
            to_device(batch, self._device)
            for batch in self.phases[phase].fresh_batches(shuffled=shuffled)
        )


def _check_no_unread_keys(task: Task, experiment: Experiment, datasets: dict[str, Any]) -> None:
    """Raise ConfigError for keys about data that the task does not have: evaluation phases,
    streams, loaders."""
    loader, train, method = experiment.loader, datasets["train"], f"{type(task).__name__}.data()"
    if not is_indexed(train) and experiment.workers.min_count < experiment.workers.max_count:
        raise ConfigError.at(
            "workers.count",
            f"must be one number, as the train data is a stream, got {experiment.workers.count}",
        )
    # The loop makes a loader for each phase unless the task returns one.
    loop_loads = {
        phase
        for phase, data in datasets.items()
        if not is_loader(data) or hasattr(data, "made_by_engine")
    }
    loop_evaluates, evaluates = bool(loop_loads - {"train"}), len(datasets) > 1
    sets_eval_size = loader.eval_batch_size is not None
    sets_size = experiment.batch_size != Experiment.model_fields["batch_size"].default
    default = Experiment.model_fields["validate_every"].default
    map_style = f"the train data ({type(train).__name__}) is map-style, so an epoch is one pass over its samples"
    own_loaders = f"{method} returns its own loaders; set it there"
    no_phases = f"{method} returns only {' and '.join(datasets)}"
    unread = (
        ("epoch_steps", map_style, is_indexed(train) and experiment.epoch_steps is not None),
        ("loader.on_exhausted", map_style, is_indexed(train) and loader.on_exhausted != "restart"),
        (
            "batch_size",
            own_loaders,
            sets_size and "train" not in loop_loads and (not loop_evaluates or sets_eval_size),
        ),
        ("loader.num_workers", own_loaders, not loop_loads and loader.num_workers != 0),
        ("loader.pin_memory", own_loaders, not loop_loads and loader.pin_memory is not None),
        ("loader.drop_last", own_loaders, "train" not in loop_loads and loader.drop_last),
        (
            "loader.eval_batch_size",
            own_loaders,
            sets_eval_size and evaluates and not loop_evaluates,
        ),
        ("loader.eval_batch_size", no_phases, sets_eval_size and not evaluates),
        (
            "validate_every",
            no_phases,
            not phases_of("val", datasets)
            and experiment.validate_every not in (default, Interval(0)),
        ),
    )
    problems = [
        Problem(path, f"has no effect: {reason}") for path, reason, is_unread in unread if is_unread
    ]
    if problems:
        raise ConfigError(problems)

"""The data of a prediction: each sample of a dataset once, in the dataset's order. Runs in
workers."""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

from orchestrator.errors import TaskError
from orchestrator.experiment.checks.datasets import is_map_style
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.map_style import MapStyleData
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.loop.data.phases import Data, DataOf, build_phases, load_datasets
from orchestrator.loop.data.sampling import Order
from orchestrator.loop.task_errors import describe
from orchestrator.loop.world import World
from orchestrator.randomness import seeded
from orchestrator.task import Task
from orchestrator.user_code.named_classes import find_function


class ConsecutiveSamples(MapStyleData):
    """Each sample of a dataset once, whatever the task's sampler; a rank has consecutive ones.

    Raises TaskError for a dataset without indices or samples.
    """

    def __init__(self, context: PhaseContext, dataset: Any) -> None:
        phase = context.phase
        if not is_map_style(dataset):
            raise TaskError(
                "predictions need a dataset with __len__ and __getitem__, so that each sample has"
                f" an index; the {phase} data is {describe(dataset)}"
            )
        if len(dataset) == 0:
            raise TaskError(f"the {phase} data is {describe(dataset)} without a sample to predict")
        super().__init__(context, dataset)

    def _find_order(self) -> tuple[Order, int]:
        length = len(self.dataset)
        ranks = self._context.world.world_size
        order = np.empty(length, dtype=np.int64)
        # The sampler gives every rank each `ranks`-th entry.
        for rank, share in enumerate(np.array_split(np.arange(length), ranks)):
            order[rank::ranks] = share
        indices: list[int] = order.tolist()
        return lambda epoch: indices, length

    def iterate_indices(self) -> Iterator[list[int]]:
        """Yield the samples of each of this rank's batches."""
        return iter(BatchSampler(self.sampler, self._context.batch_size, drop_last=False))


class _SamplesInTraining(ConsecutiveSamples):
    """Samples in place of training data of another length: `iterations` of an epoch."""

    def __init__(self, context: PhaseContext, dataset: Any, iterations: int | None) -> None:
        super().__init__(context, dataset)
        self._iterations = iterations

    def length(self, offset: int = 0) -> int:
        """Return the length of an epoch in the run."""
        return super().length(offset) if self._iterations is None else self._iterations


def build_data_to_predict(
    task: Task, experiment: Experiment, world: World, data_of: DataOf, *, phase: str
) -> Data:
    """Return the data of a task, with the samples of one phase in their own order; collective.

    Raises TaskError if they cannot be predicted, and ConfigError for wrong data.
    """
    datasets = load_datasets(task, experiment, world, data_of)
    if phase not in datasets:
        raise TaskError(
            f"data() of {type(task).__name__} gives {', '.join(datasets)}, and no {phase} to"
            " predict"
        )
    context = PhaseContext(task, phase, experiment, world)
    samples = ConsecutiveSamples(context, datasets.pop(phase))
    others = build_phases(task, experiment, world, datasets, data_of)
    return Data({**others, phase: samples}, world.device)


def build_dataset_to_predict(
    task: Task,
    experiment: Experiment,
    world: World,
    *,
    phase: str,
    data: Any,
    epoch_iterations: int | None,
) -> Data:
    """Return a dataset to predict, in place of the task's own data, which is not loaded.

    `data` is a dataset, a pickled one, or the `module:function` that returns one. It takes the
    place of the phase's, and of training data, of which hooks take an example batch.
    `epoch_iterations` is the length of an epoch in the run, as schedules count it; None if unknown.
    Raises TaskError if it cannot be predicted.
    """
    with seeded(experiment.seed):
        dataset = _load_dataset(data)
    context = PhaseContext(task, phase, experiment, world)
    samples = ConsecutiveSamples(context, dataset)
    train = _SamplesInTraining(context, dataset, epoch_iterations)
    return Data({"train": train, phase: samples}, world.device)


def _load_dataset(data: Any) -> Any:
    if isinstance(data, str):
        return find_function(data, "data")()
    return pickle.loads(data) if isinstance(data, bytes) else data

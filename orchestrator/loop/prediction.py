"""Predictions: what a run's model returns for each sample of a dataset, in the dataset's order. Runs
in workers."""

import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from hooks.state import Weights
from orchestrator.disk.predictions import INDEX, PredictionWriter
from orchestrator.errors import TaskError
from orchestrator.experiment.checks.datasets import is_map_style
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.map_style import MapStyleData
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.loop.data.phases import Data, DataOf
from orchestrator.loop.data.sampling import Order
from orchestrator.loop.evaluation import Evaluation
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.task_errors import describe, unexpected
from orchestrator.loop.training import Training
from orchestrator.loop.training_run import TrainingRun
from orchestrator.loop.world import World
from orchestrator.randomness import seeded
from orchestrator.storage import Storage
from orchestrator.task import Task
from orchestrator.user_code import find_function, find_source_location

_EXPECTED = "a tensor, an array or a list with an entry for each sample, or a mapping of these"


class Prediction(Evaluation):
    """An evaluation of one phase with one set of weights, which writes predictions into a `folder`
    and computes neither losses nor metrics.

    `provider` is the hook whose weights are used; empty for the raw ones.
    """

    verb: ClassVar[str] = "predict"

    def __init__(
        self, run: TrainingRun, training: Training, phase: str, folder: Storage, provider: str
    ) -> None:
        super().__init__(run, training)
        self._phase = phase
        self._folder = folder
        self._provider = provider
        samples = self._find_samples()
        self._indices = samples.iterate_indices()
        self._data.phases[phase] = samples
        self._data.loaders[phase] = samples.loader
        self._writer = PredictionWriter(folder)
        self._schema: pa.Schema | None = None

    def _make_runner(self, *parts: Any) -> IterationRunner:
        return _PredictionRunner(self._keep, *parts)

    def _find_samples(self) -> "_ConsecutiveSamples":
        """Return the data of the phase, whatever order it has."""
        data = self._data.phases.get(self._phase)
        if data is None:
            raise TaskError(
                f"data() of {type(self._task).__name__} gives {', '.join(self._data.phases)}, and no"
                f" {self._phase} to predict"
            )
        if isinstance(data, _ConsecutiveSamples):
            return data
        context = PhaseContext(self._task, self._phase, self._experiment, self._world)
        dataset = data.dataset if isinstance(data, MapStyleData) else data.loader
        return _ConsecutiveSamples(context, dataset)

    def check_data(self, phases: object) -> None:
        """Check nothing, because there is no loss and no metric."""

    def _make_meters(self) -> Mapping[str, Any]:
        return {}

    def _find_loss_check(self, data: object) -> None:
        return None

    def evaluate(self, kind: str) -> None:
        """Write the predictions of the phase; collective."""
        state = self._state
        provided = (
            weights for weights in state.evaluations.values() if weights.provider == self._provider
        )
        state.evaluations = {"": next(provided, Weights())}

        # An earlier attempt may have written files, perhaps with another number of ranks.
        self._world.broadcast(partial(self._folder.delete, ""))
        self._evaluate_phase(self._phase)
        self._writer.flush()
        schemas = [schema for schema in self._world.gather(self._schema) if schema is not None]
        for schema in schemas:
            self._check_same_columns(schemas[0], schema)

    def _keep(self, output: Any, batch: Any) -> None:
        """Keep the predictions of a batch."""
        method = self._task.predict
        indices = next(self._indices)
        table = pa.table({INDEX: indices, **_make_columns(method, method(output, batch), indices)})
        self._schema = self._schema or table.schema
        self._check_same_columns(self._schema, table.schema)
        self._writer.add(table)

    def _check_same_columns(self, expected: pa.Schema, schema: pa.Schema) -> None:
        if schema != expected:
            raise TaskError(
                f"predict() returns {_describe_columns(schema)} for some batches and {_describe_columns(expected)} for"
                " others; give all samples one shape, or return lists for those that differ"
                f"{find_source_location(self._task.predict)}"
            )


class _PredictionRunner(IterationRunner):
    """Runner of iterations that hand their output to `keep`, in place of a loss and metrics."""

    def __init__(self, keep: Callable[[Any, Any], None], *parts: Any) -> None:
        super().__init__(*parts)
        self._compute_loss = self.precision.with_autocast(keep)
        self._has_metrics = False
        self._has_weights = False


class _ConsecutiveSamples(MapStyleData):
    """Each sample of a dataset once, whatever the task's sampler; a rank has consecutive ones.

    Raises TaskError for a dataset without indices or samples.
    """

    def __init__(self, context: PhaseContext, dataset: Any) -> None:
        phase = context.phase
        if not is_map_style(dataset):
            raise TaskError(
                "predictions need a dataset with __len__ and __getitem__, so that each sample has an"
                f" index; the {phase} data is {describe(dataset)}"
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

    def _check_meters(self, samples: int) -> None:
        """Check nothing, because no meter is computed."""

    def iterate_indices(self) -> Iterator[list[int]]:
        """Yield the samples of each of this rank's batches."""
        return iter(BatchSampler(self.sampler, self._context.batch_size, drop_last=False))


class _SamplesInTraining(_ConsecutiveSamples):
    """Samples in place of training data of another length: `iterations` of an epoch."""

    def __init__(self, context: PhaseContext, dataset: Any, iterations: int | None) -> None:
        super().__init__(context, dataset)
        self._iterations = iterations

    def length(self, offset: int = 0) -> int:
        """Return the length of an epoch in the run."""
        return super().length(offset) if self._iterations is None else self._iterations


class DataToPredict(Data):
    """A dataset to predict, in place of the task's own data, which is not loaded.

    `data` is a dataset, a pickled one, or the `module:function` that returns one. It takes the place
    of the phase's, and of training data, of which hooks take an example batch. `epoch_iterations`
    is the length of an epoch in the run, as schedules count it; None if unknown.
    """

    def __init__(
        self,
        task: Task,
        experiment: Experiment,
        world: World,
        data_of: DataOf,
        *,
        phase: str,
        data: Any,
        epoch_iterations: int | None,
    ) -> None:
        self._device = world.device
        with seeded(experiment.seed):
            dataset = _load_dataset(data)
        context = PhaseContext(task, phase, experiment, world)
        samples = _ConsecutiveSamples(context, dataset)
        self.train = _SamplesInTraining(context, dataset, epoch_iterations)
        self.phases = {"train": self.train, phase: samples}
        self.loaders = {name: phase_data.loader for name, phase_data in self.phases.items()}


def _load_dataset(data: Any) -> Any:
    if isinstance(data, str):
        return find_function(data, "data")()
    return pickle.loads(data) if isinstance(data, bytes) else data


def _make_columns(
    method: Callable[..., Any], predictions: Any, indices: list[int]
) -> dict[str, pa.Array]:
    """Return what `Task.predict` returned as columns; raises TaskError for other things."""
    if not isinstance(predictions, Mapping):
        predictions = {"output": predictions}
    columns = {}
    for name, values in predictions.items():
        if not isinstance(name, str) or name == INDEX:
            raise TaskError(
                f"predict() names a column {name!r}; expected text other than '{INDEX}', which has the samples' indices"
                f"{find_source_location(method)}"
            )
        column = _make_column(method, name, values)
        if len(column) != len(indices):
            raise unexpected(
                method,
                f" with {len(column)} entries for '{name}'",
                values,
                f"{len(indices)}, one for each sample of the batch",
            )
        columns[name] = column
    return columns


def _make_column(method: Callable[..., Any], name: str, values: Any) -> pa.Array:
    if not isinstance(values, Tensor | np.ndarray | list | tuple) or not getattr(values, "ndim", 1):
        raise unexpected(method, f" for '{name}'", values, _EXPECTED)
    try:
        if isinstance(values, Tensor | np.ndarray):
            return _to_arrow(values)
        return pa.array([entry.tolist() if hasattr(entry, "tolist") else entry for entry in values])
    except pa.ArrowException as error:
        raise unexpected(
            method, f" for '{name}' that is no column ({error})", values, _EXPECTED
        ) from error


def _to_arrow(values: Tensor | np.ndarray) -> pa.Array:
    """Return an array with an entry for each sample: a number, or a nested list of fixed size."""
    if isinstance(values, Tensor):
        # NumPy has no bfloat16.
        values = (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
    column = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _describe_columns(schema: pa.Schema) -> str:
    columns = [f"'{field.name}' ({field.type})" for field in schema if field.name != INDEX]
    return " and ".join(columns)

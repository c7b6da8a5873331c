"""Predictions: what a run's model returns for each sample of a dataset, in the dataset's order. Runs
in workers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hooks.state import Weights
from orchestrator.disk.predictions import INDEX, PredictionWriter
from orchestrator.errors import TaskError
from orchestrator.loop.data.map_style import MapStyleData
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.loop.data.predicted_data import ConsecutiveSamples
from orchestrator.loop.evaluation import Evaluation
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.step.stages import StepContext
from orchestrator.loop.task_errors import unexpected
from orchestrator.loop.training import Training
from orchestrator.loop.training_run import TrainingRun
from orchestrator.storage import Storage
from orchestrator.user_code import find_source_location

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

    def _make_runner(self, context: StepContext) -> IterationRunner:
        return _PredictionRunner(context, self._keep)

    def _find_samples(self) -> ConsecutiveSamples:
        """Return the data of the phase, whatever order it has."""
        data = self._data.phases.get(self._phase)
        if data is None:
            raise TaskError(
                f"data() of {type(self._task).__name__} gives {', '.join(self._data.phases)}, and no"
                f" {self._phase} to predict"
            )
        if isinstance(data, ConsecutiveSamples):
            return data
        context = PhaseContext(self._task, self._phase, self._experiment, self._world)
        dataset = data.dataset if isinstance(data, MapStyleData) else data.loader
        return ConsecutiveSamples(context, dataset)

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

    _has_metrics = False
    _has_weights = False

    def __init__(self, context: StepContext, keep: Callable[[Any, Any], None]) -> None:
        super().__init__(context)
        self._keep = keep

    def _find_loss(self) -> Callable[..., Any]:
        return self._keep


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

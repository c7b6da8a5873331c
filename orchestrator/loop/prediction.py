"""Predictions: what a run's model returns for each sample of a dataset, in the dataset's order. Runs
in workers."""

from functools import partial
from typing import Any

import pyarrow as pa

from orchestrator.disk.predictions import INDEX, PredictionWriter
from orchestrator.errors import TaskError
from orchestrator.loop.data.predicted_data import ConsecutiveSamples
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.predicted_columns import describe_columns, make_columns
from orchestrator.storage import Storage
from orchestrator.user_code.failures import find_source_location


class Prediction:
    """Predictions of a run for the `samples` of a phase, written into a `folder`: what the task
    keeps of the outputs of this rank."""

    def __init__(
        self, run: HookedRun, phase: str, samples: ConsecutiveSamples, folder: Storage
    ) -> None:
        self._task = run.task
        self._world = run.world
        self._inference = run.inference
        self.phase = phase
        self._indices = samples.iterate_indices()
        self._folder = folder
        self._writer = PredictionWriter(folder)
        self._schema: pa.Schema | None = None

    def write(self) -> None:
        """Write the predictions of the phase; collective.

        Raises TaskError if the batches of all ranks do not have the same columns.
        """
        # An earlier attempt may have written files, perhaps with another number of ranks.
        self._world.broadcast(partial(self._folder.delete, ""))
        predict = partial(self._inference.iterations.predict, keep=self._keep)
        for run_pass in self._inference.iterate_passes(self.phase):
            self._inference.check_has_sample(self.phase, run_pass(predict))
        self._writer.flush()
        self._check_ranks()

    def _keep(self, output: Any, batch: Any) -> None:
        """Keep the predictions of a batch."""
        indices = next(self._indices)
        method = self._task.predict
        columns = make_columns(method, method(output, batch), len(indices))
        table = pa.table({INDEX: indices, **columns})
        self._schema = self._schema or table.schema
        self._check_same_columns(self._schema, table.schema)
        self._writer.add(table)

    def _check_ranks(self) -> None:
        # A rank without a sample has no schema.
        schemas = [schema for schema in self._world.gather(self._schema) if schema is not None]
        for schema in schemas:
            self._check_same_columns(schemas[0], schema)

    def _check_same_columns(self, expected: pa.Schema, schema: pa.Schema) -> None:
        if schema != expected:
            raise TaskError(
                f"predict() returns {describe_columns(schema)} for some batches and"
                f" {describe_columns(expected)} for others; give all samples one shape, or return"
                f" lists for those that differ{find_source_location(self._task.predict)}"
            )

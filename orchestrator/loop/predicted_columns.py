"""Columns of predictions: what `Task.predict` returns for a batch, as Arrow arrays. Runs in
workers."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from orchestrator.disk.predictions import INDEX
from orchestrator.errors import TaskError
from orchestrator.loop.task_errors import make_return_error
from orchestrator.units import format_count
from orchestrator.user_code.failures import find_source_location

_EXPECTED = "a tensor, an array or a list with an entry for each sample, or a mapping of these"


def make_columns(method: Callable[..., Any], predictions: Any, samples: int) -> dict[str, pa.Array]:
    """Return what the task's `method` returned for a number of samples as columns; raises TaskError
    for other things."""
    if not isinstance(predictions, Mapping):
        predictions = {"output": predictions}
    columns = {}
    for name, values in predictions.items():
        if not isinstance(name, str) or name == INDEX:
            raise TaskError(
                f"predict() names a column {name!r}; expected text other than '{INDEX}', which has"
                f" the samples' indices{find_source_location(method)}"
            )
        column = _make_column(method, name, values)
        if len(column) != samples:
            raise make_return_error(
                method,
                f" with {format_count(len(column), 'value')} for '{name}'",
                values,
                f"{samples}, one for each sample of the batch",
            )
        columns[name] = column
    return columns


def _make_column(method: Callable[..., Any], name: str, values: Any) -> pa.Array:
    if not isinstance(values, Tensor | np.ndarray | list | tuple) or not getattr(values, "ndim", 1):
        raise make_return_error(method, f" for '{name}'", values, _EXPECTED)
    try:
        if isinstance(values, Tensor | np.ndarray):
            return _to_arrow(values)
        return pa.array([entry.tolist() if hasattr(entry, "tolist") else entry for entry in values])
    except (pa.ArrowException, TypeError) as error:
        raise make_return_error(
            method, f" for '{name}' that is no column ({error})", values, _EXPECTED
        ) from error


def _to_arrow(values: Tensor | np.ndarray) -> pa.Array:
    """Return an array with an entry for each sample: a number, or a nested list of fixed size."""
    if isinstance(values, Tensor):
        if values.dtype == torch.bfloat16:
            # NumPy has no such type.
            values = values.float()
        values = values.cpu().numpy()
    column = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def describe_columns(schema: pa.Schema) -> str:
    """Return the names and types of a table's columns, except the index."""
    columns = [f"'{field.name}' ({field.type})" for field in schema if field.name != INDEX]
    return " and ".join(columns)

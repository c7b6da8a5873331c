"""The values of the task's meters: as numbers and matrices, and the same on all ranks. Used in
workers."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, SupportsFloat

import numpy as np
from torch import Tensor

from hooks.errors import add_article
from orchestrator.errors import TaskError
from orchestrator.task import Task
from orchestrator.user_code.failures import find_source_location


def flatten_value(name: str, value: Any) -> dict[str, Any]:
    """Return the value that the meter `name` has computed as numbers and matrices by name.

    Numbers of a vector are `<name>/<index>`, entries of a mapping `<name>/<key>`. Raises TaskError
    for other kinds of values.
    """
    if isinstance(value, Mapping):
        numbers: dict[str, Any] = {}
        for key, part in value.items():
            numbers |= flatten_value(f"{name}/{key}", part)
        return numbers
    shape = tuple(getattr(value, "shape", ()))
    if isinstance(value, SupportsFloat) and math.prod(shape) == 1:
        return {name: float(value)}
    if len(shape) == 1:
        return {f"{name}/{index}": float(number) for index, number in enumerate(value)}
    if len(shape) == 2 and 0 not in shape:
        return {name: value.cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)}
    returned = f"values of shape {shape}" if shape else add_article(type(value).__name__)
    raise TaskError(
        f"compute() of the meter '{name}' returns {returned}; expected a number, a vector, a matrix,"
        " or a mapping of these"
    )


def check_ranks_agree(
    task: Task, prefix: str, meter: str, ranks: Sequence[Mapping[str, Any]]
) -> None:
    """Raise TaskError if ranks have different values of a meter, beyond rounding errors."""
    for name in dict.fromkeys(chain.from_iterable(ranks)):
        first = ranks[0].get(name)
        for rank, values in enumerate(ranks):
            value = values.get(name)
            if not _are_close(value, first):
                raise TaskError(
                    f"the meter '{meter}' differs between ranks: {prefix}/{name} is {first} on rank 0 and {value} on"
                    f" rank {rank}; its compute() must combine all ranks, as torchmetrics does with"
                    f" dist_reduce_fx{find_source_location(task.meters)}"
                )


def _are_close(value: Any, other: Any) -> bool:
    if value is None or other is None:
        return value is other
    if np.shape(value) != np.shape(other):
        return False
    return np.allclose(value, other, rtol=1e-6, atol=0.0, equal_nan=True)

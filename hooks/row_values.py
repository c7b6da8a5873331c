"""Values that hooks record in a row: one number each."""

import math
from typing import Any, cast

from torch import Tensor

from hooks.distributed import sharded_tensors as shards
from hooks.errors import add_article


def copy_row_value(column: str, value: Any) -> Any:
    """Return a value for a row; a tensor is copied, and stays on its device.

    Raises ValueError unless it is one number. Collective if the value is a sharded tensor.
    """
    if isinstance(value, float | int | str):
        return value
    if isinstance(value, Tensor):
        if type(value) is not Tensor and shards.is_sharded(value):
            # A rank may have only its part of a sum.
            value = cast(Any, value).full_tensor()
        value = value.detach().clone()
    _check_is_one_number(column, value)
    return value


def _check_is_one_number(column: str, value: Any) -> None:
    """Raise ValueError for a tensor or another collection with more or less than one element."""
    if not hasattr(value, "__len__"):
        return
    shape = tuple(getattr(value, "shape", ()))
    if hasattr(value, "shape") and math.prod(shape) == 1:
        return
    kind = "tensor" if isinstance(value, Tensor) else type(value).__name__
    size = f" of shape {shape}" if hasattr(value, "shape") else ""
    raise ValueError(
        f"column '{column}' got {add_article(kind)}{size}; record one number per row, such as its mean"
    )

"""Arrow arrays of recorded values: the type of a column follows from its values."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.disk.rows.values import PLAIN, read_number


def make_columns(rows: Sequence[dict[str, Any]], known: Collection[str]) -> dict[str, pa.Array]:
    """Return the columns of some dicts, except those in `known`.

    Raises:
        ValueError: A column has values that are neither numbers nor text.
    """
    columns = {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        if name not in known:
            columns[name] = _make_array(name, [row.get(name) for row in rows])
    return columns


def place_values(array: pa.Array, indices: Sequence[int], count: int) -> pa.Array:
    """Return an array of `count` values with those of `array` at the given indices, and null
    elsewhere."""
    if len(array) == count:
        return array
    sources = np.full(count, -1)
    sources[indices] = np.arange(len(array))
    return array.take(pa.array(sources, mask=sources < 0))


def _make_array(name: str, values: list[Any]) -> pa.Array:
    """Return a column. Values on a GPU must have been read before."""
    kinds = set(map(type, values))
    if type(None) in kinds and len(kinds) > 1:
        indices = [index for index, value in enumerate(values) if value is not None]
        array = _make_array(name, [values[index] for index in indices])
        return place_values(array, indices, len(values))

    numbers = _make_number_array(values, kinds)
    if numbers is not None:
        return numbers

    plain = values if kinds <= PLAIN else [_to_plain(name, value) for value in values]
    if any(isinstance(value, str) for value in plain):
        return _make_text_array(name, plain)

    integers = _make_large_integer_array(plain, is_unsigned=np.uint64 in kinds)
    if integers is not None:
        return integers
    return _make_plain_array(name, plain)


def _make_number_array(values: list[Any], kinds: set[type]) -> pa.Array | None:
    """Return an array of Python numbers; None if there are other values or large integers.

    This is five times as fast as Arrow, which checks the type of each number.
    """
    if not kinds <= {int, float}:
        return None
    dtype = np.float64 if float in kinds else np.int64
    with suppress(OverflowError):
        return pa.array(np.array(values, dtype))
    return None


def _make_text_array(name: str, values: list[Any]) -> pa.Array:
    """Return an array of text, into which the numbers are converted."""
    import pyarrow.compute as pc  # a slow import

    texts = [value if isinstance(value, str) else None for value in values]
    numbers = [None if isinstance(value, str) else value for value in values]
    return pc.coalesce(pa.array(texts), _make_array(name, numbers).cast(pa.string()))


def _make_large_integer_array(values: list[Any], *, is_unsigned: bool) -> pa.Array | None:
    """Return an array of integers of which one is too large for int64; None for other values.

    Args:
        values: Plain values.
        is_unsigned: Whether some were recorded as uint64, so that the column is uint64 even if all
            of them are small.
    """
    if not {*map(type, values)} <= {int, type(None)}:
        return None
    integers = [value for value in values if value is not None]
    if not is_unsigned and all(value < 2**63 for value in integers):
        return None

    with suppress(OverflowError, pa.ArrowException):
        return pa.array(values, pa.uint64())
    if all(-(2**63) <= value < 2**64 for value in integers):
        return pa.array(values, pa.decimal128(20))  # as `merge_types` chooses for two files
    return None


def _make_plain_array(name: str, values: list[Any]) -> pa.Array:
    """Return an array of plain numbers, or of nulls; raises ValueError for anything else."""
    if any(map(_needs_float, values)):
        values = [float(value) if isinstance(value, int) else value for value in values]
    with suppress(pa.ArrowException):
        array = pa.array(values)
        if pa.types.is_null(array.type) or pa.types.is_primitive(array.type):
            return array

    examples = {type(value): value for value in values if value is not None}
    raise ValueError(f"column '{name}' must hold numbers or text; got {list(examples.values())}")


def _needs_float(value: Any) -> bool:
    """Return whether whole numbers in the column of a value become floats, so that all of its rows
    have one type."""
    if isinstance(value, bool | float):
        return True
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _to_plain(name: str, value: Any) -> Any:
    """Return the Python number of a tensor, of a NumPy scalar or of a measured time, and any other
    value unchanged."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"column '{name}' got a tensor of shape {tuple(value.shape)}; record one number per row"
            )
        value = read_number(value)
    if hasattr(value, "resolve"):
        value = value.resolve()
    return value.item() if hasattr(value, "item") else value

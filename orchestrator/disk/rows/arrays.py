"""Arrow arrays of recorded values: the type of a column follows from its values."""

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.disk.rows.values import PLAIN, is_measured_time


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
    if type(None) in kinds:
        indices = [index for index, value in enumerate(values) if value is not None]
        if not indices:
            return pa.nulls(len(values))
        array = _make_array(name, [values[index] for index in indices])
        return place_values(array, indices, len(values))

    numbers = _make_number_array(values, kinds)
    if numbers is not None:
        return numbers

    plain = values if kinds <= PLAIN else [_to_plain(name, value) for value in values]
    column_type = _choose_type(plain, is_unsigned=np.uint64 in kinds)
    if pa.types.is_string(column_type):
        return _make_text_array(plain)
    if pa.types.is_floating(column_type):
        return pa.array([_to_float(name, value) for value in plain], column_type)
    return pa.array(plain, column_type)


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


def _choose_type(values: Sequence[Any], *, is_unsigned: bool) -> pa.DataType:
    """Return the type of a column of plain values.

    | Values                                             | Type                                 |
    | -------------------------------------------------- | ------------------------------------ |
    | text, perhaps with numbers                         | string                               |
    | floats or bools, perhaps with integers             | float64                              |
    | integers that int64 holds                          | int64, or as below if `is_unsigned`  |
    | integers that uint64 holds                         | uint64                               |
    | integers of which each fits one of the two         | decimal, as `merge_types` chooses it |
    | larger integers                                    | float64                              |

    Args:
        values: Plain values other than None.
        is_unsigned: Whether some were recorded as uint64, so that the column is uint64 even if all
            of them are small.
    """
    if any(isinstance(value, str) for value in values):
        return pa.string()
    if any(isinstance(value, bool | float) for value in values):
        return pa.float64()

    least = min(values)
    greatest = max(values)
    if least >= -(2**63) and greatest < 2**63 and not is_unsigned:
        return pa.int64()
    if least >= 0 and greatest < 2**64:
        return pa.uint64()
    if least >= -(2**63) and greatest < 2**64:
        return pa.decimal128(20)
    return pa.float64()


def _make_text_array(values: list[Any]) -> pa.Array:
    """Return an array of text, into which the numbers are converted. Integers keep all digits."""
    import pyarrow.compute as pc  # a slow import

    texts: list[str | None] = []
    floats: list[float | None] = []
    for value in values:
        is_float = isinstance(value, bool | float)
        texts.append(None if is_float else str(value))
        floats.append(float(value) if is_float else None)
    return pc.coalesce(
        pa.array(texts, pa.string()), pa.array(floats, pa.float64()).cast(pa.string())
    )


def _to_float(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"column '{name}' must hold numbers below 1.8e308; got an integer of {value.bit_length()} bits"
        ) from None


def _to_plain(name: str, value: Any) -> Any:
    """Return the Python number of a tensor, of a NumPy value or of a measured time, and text
    unchanged; raises ValueError for anything else."""
    plain = value.resolve() if is_measured_time(value) else value
    # A NumPy scalar has no other shape, and looking at it takes time.
    if not isinstance(plain, np.generic):
        _check_shape(name, plain)
    if hasattr(plain, "item"):
        plain = plain.item()
    if isinstance(plain, int | float | str):
        return plain
    raise ValueError(f"column '{name}' must hold numbers or text; got {value!r}")


def _check_shape(name: str, value: Any) -> None:
    """Raise ValueError for a tensor or an array of several elements, or of none."""
    shape = getattr(value, "shape", ())
    if math.prod(shape) != 1:
        kind = "an array" if isinstance(value, np.ndarray) else "a tensor"
        raise ValueError(
            f"column '{name}' got {kind} of shape {tuple(shape)}; record one number per row"
        )

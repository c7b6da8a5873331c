from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from orchestrator.disk.rows.arrays import make_columns


def make_column(*values: Any) -> pa.Array:
    return make_columns([{"a": value} for value in values], ())["a"]


@pytest.mark.parametrize(
    "value",
    [
        10**400,
        torch.tensor(1 + 2j),
        1 + 2j,
        np.array([1.0, 2.0]),
        torch.zeros(2),
        datetime(2026, 1, 1),
        np.datetime64("2026-01-01"),
        timedelta(seconds=1),
        np.timedelta64(1, "s"),
        Path("here"),
        b"bytes",
    ],
    ids=str,
)
def test_refusal_names_the_column(value: Any) -> None:
    with pytest.raises(ValueError, match="column 'a' "):
        make_column(value)


def test_integers_beside_text_keep_their_digits() -> None:
    column = make_column(2**64, "x", 0.5, None, 2**53 + 1)
    assert column.to_pylist() == ["18446744073709551616", "x", "0.5", None, "9007199254740993"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, -(2**63)), pa.int64()),
        ((1, 2**64 - 1), pa.uint64()),
        ((np.uint64(1), 2), pa.uint64()),
        ((np.uint64(1), -1), pa.decimal128(20)),
        ((-1, 2**63), pa.decimal128(20)),
        ((-1, 2**64), pa.float64()),
        ((True, 1), pa.float64()),
        ((np.float32(0.5), 1), pa.float64()),
        ((1, "x"), pa.string()),
        ((np.str_("x"),), pa.string()),
        ((None, None), pa.null()),
        ((np.array([3]), None), pa.int64()),
    ],
)
def test_type_follows_from_the_values(values: tuple[Any, ...], expected: pa.DataType) -> None:
    assert make_column(*values).type == expected

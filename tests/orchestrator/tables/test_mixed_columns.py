"""Columns whose values have several types."""

from typing import Any

import pyarrow as pa
import pytest

from orchestrator.tables.mixed_columns import (
    MIXED,
    concat_columns,
    make_column,
    unify_mixed_columns,
)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2], pa.int64()),
        ([0.5, None], pa.float64()),
        (["auto", None], pa.string()),
        ([None, None], pa.null()),
        ([1, 0.5], MIXED),
        ([True, 1], MIXED),
        ([2**64], MIXED),
    ],
)
def test_column_of_one_type_keeps_it(values: list[Any], kind: pa.DataType) -> None:
    assert make_column(values).type == kind


@pytest.mark.parametrize(
    ("values", "unified"),
    [
        ([1, None, 0.5], [1.0, None, 0.5]),
        ([1, None, "auto"], ["1", None, "auto"]),
        ([True, 1], ["true", "1"]),
        ([2**63 + 1, None], [2**63 + 1, None]),
        ([2**64 + 1, -1], [2**64 + 1, -1]),
    ],
)
def test_mixed_values_become_numbers_or_text(values: list[Any], unified: list[Any]) -> None:
    table = pa.table({"value": make_column(values), "name": ["a"] * len(values)})
    read = unify_mixed_columns(table)
    assert read["value"].to_pylist() == unified
    assert read["name"] == table["name"]


@pytest.mark.parametrize(
    ("first", "second"), [([1, 2], [0.5]), ([1, 0.5], [2]), ([None], ["auto"]), ([], [1])]
)
def test_concatenated_column_is_that_of_all_values(first: list[Any], second: list[Any]) -> None:
    parts = [pa.chunked_array([make_column(values)]) for values in (first, second)]
    concatenated = concat_columns(parts)
    expected = make_column([*first, *second])
    assert concatenated.type == expected.type
    assert concatenated.to_pylist() == expected.to_pylist()

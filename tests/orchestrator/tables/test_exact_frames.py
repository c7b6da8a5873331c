"""Frames joined without rounding, against the numbers that went in."""

import numpy as np
import pandas as pd
import pytest

from orchestrator.tables.exact_frames import concat_exactly


def test_tables_are_joined_without_rounding_large_integers() -> None:
    large = pd.DataFrame({"x": [2**53 + 1]})
    gaps = pd.DataFrame({"x": [1.0, np.nan]})
    for other, expected in (
        (gaps, [2**53 + 1, 1, None]),
        (pd.DataFrame({"y": [5]}), [2**53 + 1, None]),
    ):
        joined = concat_exactly([large, other])["x"]
        assert [None if value is pd.NA else value for value in joined] == expected
    for tables in (
        [large, large],
        [gaps, pd.DataFrame({"x": [7]})],
        [large, pd.DataFrame({"x": [0.5]})],
    ):
        pd.testing.assert_frame_equal(concat_exactly(tables), pd.concat(tables, ignore_index=True))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("signed", [-1, 2**60 + 1, -(2**60) - 1])
def test_signed_and_large_unsigned_integers_of_tables_are_exact(signed: int, order: int) -> None:
    """As in the table of one run: decimals where no type of integers holds both."""
    tables = [
        pd.DataFrame({"x": np.array([signed], dtype="int64")}),
        pd.DataFrame({"x": np.array([2**63 + 1], dtype="uint64")}),
        pd.DataFrame({"x": [1.0, np.nan]}),
    ][::order]
    joined = concat_exactly(tables)["x"].dropna()
    assert sorted(joined) == sorted([signed, 2**63 + 1, 1])

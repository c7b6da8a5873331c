"""Conditions, against the rows picked by hand."""

from __future__ import annotations

import pyarrow as pa
import pytest

from orchestrator.errors import UsageError
from orchestrator.stats.read.row_filter import joint_condition, parse_where

ROWS = pa.table(
    {
        "row": [0, 1, 2, 3],
        "rank": pa.array([0, 1, 0, 1], pa.int32()),
        "phase": ["train", "train", "val", "val"],
        "loss": [0.5, float("nan"), 2.0, None],
        "limit": [0.25, 1.0, 3.0, 1.0],
        "skipped": [True, False, None, False],
        "unseen": pa.nulls(4),
    }
)


def met(text: str) -> list[int]:
    rows: list[int] = ROWS.filter(joint_condition(parse_where(text, ROWS.schema)))["row"].to_pylist()
    return rows


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("rank == 0", [0, 2]),
        ("0 == rank", [0, 2]),
        ("rank != 0", [1, 3]),
        ("rank == 0 and phase == 'val'", [2]),
        ("rank == 0 or phase == 'val'", [0, 2, 3]),
        ("not (rank == 0 or phase == 'val')", [1]),
        ("rank == 0 and (phase == 'val' or loss < 1)", [0, 2]),
        ("0 < row <= 2", [1, 2]),
        ("row in [0, 3, 7]", [0, 3]),
        ("row not in (0, 3)", [1, 2]),
        ("phase in {'val'}", [2, 3]),
        ("row >= 1.5", [2, 3]),
        ("row > -1 and row < 1", [0]),
        ("loss > limit", [0]),
        ("loss != loss", [1]),
        # What is empty meets nothing but the question whether it is.
        ("loss > 0", [0, 2]),
        ("not loss > 0", [1]),
        ("loss not in [0.5]", [1, 2]),
        ("loss == None", [3]),
        ("loss is None", [3]),
        ("loss is not None", [0, 1, 2]),
        ("unseen == 1", []),
        ("unseen == 'a'", []),
        ("unseen == unseen", []),
        ("unseen", []),
        ("not unseen", []),
        ("skipped", [0]),
        ("not skipped", [1, 3]),
        ("skipped == False", [1, 3]),
        ("  rank == 0\n", [0, 2]),
    ],
)
def test_the_rows_that_meet_it(text: str, rows: list[int]) -> None:
    assert met(text) == rows


def test_a_list_may_be_long() -> None:
    assert met(f"row in {list(range(2, 5000))}") == [2, 3]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("epok == 1 and rank == 0", "no column 'epok'"),
        ("los > 1", "did you mean 'loss'?"),
        ("rank = 0", "cannot read 'rank = 0'"),
        ("rank == ", "cannot read"),
        ("", "cannot read"),
        ("rank == 0; rank == 1", "cannot read"),
        ("rank == '\0'", "cannot read"),
        ("phase == 3", "column 'phase' holds text, not numbers"),
        ("rank == 'zero'", "column 'rank' holds numbers, not text"),
        ("3 < phase", "column 'phase' holds text, not numbers"),
        ("rank in [0, 'a']", "column 'rank' holds numbers, not text"),
        ("skipped == 1", "column 'skipped' holds True and False, not numbers"),
        ("rank", "'rank': it holds numbers"),
        ("1 == 1", "names no column"),
        ("rank in 3", "a list, such as rank in"),
        ("rank in []", "a list, such as rank in"),
        ("loss > None", "None is compared by == and != only"),
        ("rank + 1 == 2", "'rank + 1': is neither a column nor a value"),
        ("-rank == 2", "'-rank': is neither a column nor a value"),
        ("rank == -'a'", "is neither a number nor text"),
        ("rank == b'0'", "is neither a number nor text"),
        ("rank == 1j", "is neither a number nor text"),
        (f"rank == {10**30}", "larger than any number"),
        (f"loss == {2**53 + 1}", "larger than any number"),
        (f"rank in [{'0, ' * 20_000}]", "has 60,010 characters, and may have 50,000"),
        ("__import__('os').system('true') == 0", "is neither a column nor a value"),
        ("loss.__class__ == 0", "is neither a column nor a value"),
        ("(lambda: 0)()", "is no comparison"),
        ("'train'", "is no comparison"),
        (f"rank in [{'0,' * 20_000}]", "makes 20,001 comparisons, and may make 5,000"),
        ("not " * 5000 + "skipped", "nested too deeply"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_where(text, ROWS.schema)
    assert says in str(raised.value)


def test_before_anything_is_recorded_a_condition_is_still_read() -> None:
    assert len(parse_where("loss > 1 and rank == 0", pa.schema([]))) == 2
    with pytest.raises(UsageError, match="is no comparison"):
        parse_where("loss > 1 and 'train'", pa.schema([]))

"""Summaries of tables, by hand."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from orchestrator.tables.query import Rows
from orchestrator.tables.summaries import (
    sum_seconds,
    summarize,
    summarize_by,
    summarize_spans,
)
from tests.orchestrator.tables.test_frames import loaded, row
from tests.orchestrator.tables.test_query import NUMBERS, drawn


def two_ranks() -> pd.DataFrame:
    """Rank 0 takes 1, 2, 3 seconds, rank 1 takes 2, 4, 9, of which it waits 1, 1, 4 for data;
    memory grows."""
    waits = ((0.5, 0.5, 0.5), (1.0, 1.0, 4.0))
    rows = [
        row(
            0,
            "train",
            0,
            n,
            n,
            rank,
            loss=0.5,
            step_s=seconds,
            data_wait_s=waits[rank][n - 1],
            rss_bytes=100 * n + rank,
        )
        for rank, times in enumerate(((1.0, 2.0, 3.0), (2.0, 4.0, 9.0)))
        for n, seconds in enumerate(times, start=1)
    ]
    return loaded(rows)


EMPTY = loaded([])


def test_the_table_by_span_is_the_costliest_first() -> None:
    rows = two_ranks()
    rows["forward_s"] = rows["step_s"] - rows["data_wait_s"]
    spans = summarize_spans(Rows.wrap(rows))
    assert list(spans.index) == ["forward_s", "data_wait_s"]
    # 0.5, 0.5, 0.5, 1, 1, 4 of 21 seconds
    waited = {
        "seconds": 7.5,
        "share": 7.5 / 21,
        "median_s": 0.75,
        "p95_s": 1 + 0.75 * 3,
        "worst_rank": 1,
    }
    assert spans.loc["data_wait_s"].to_dict() == pytest.approx(waited)
    assert spans["share"].sum() == pytest.approx(1)
    assert sum_seconds(Rows.wrap(rows)) == 21


def test_shares_are_of_the_iterations_in_which_a_span_was_measured() -> None:
    """Without the first iterations, of 1 and 2 seconds, 0.5, 0.5, 1 and 4 of 18 seconds."""
    rows = two_ranks()
    rows.loc[rows["iteration"] == 1, "data_wait_s"] = np.nan
    assert summarize_spans(Rows.wrap(rows)).loc["data_wait_s", "share"] == pytest.approx(6 / 18)


def test_summaries_of_nothing_are_empty() -> None:
    for summary in (
        summarize,
        summarize_spans,
        *(partial(summarize_by, key) for key in ("rank", "node", "phase")),
    ):
        assert len(summary(Rows.wrap(EMPTY))) == 0


@pytest.mark.parametrize("seed", range(4))
def test_summaries_equal_those_of_pandas(seed: int) -> None:
    rows = drawn(seed)
    numbers = [name for name in NUMBERS if name != "empty"]
    kept = {"rank": numbers, "node": numbers, "phase": [*numbers, "loss"]}
    for key in ("rank", "node", "phase"):
        made = summarize_by(key, Rows.wrap(rows))
        grouped = rows.groupby(key)
        assert set(NUMBERS) - set(made.columns) == (
            {"empty"} if key == "phase" else {"empty", "loss"}
        )
        shown = [name for name in kept[key] if name in made]
        pd.testing.assert_frame_equal(
            made[shown].sort_index(), grouped[shown].median(), check_exact=True
        )
        assert made["rows"].to_dict() == grouped.size().to_dict()
    assert set(summarize_by("rank", Rows.wrap(rows))["node"]) == {
        "a, b"
    }  # a rank moves to another node at a restart
    summary = summarize(Rows.wrap(rows))
    for column in ("min", "median", "max"):
        assert summary[column].to_dict() == rows[numbers].agg(column).to_dict()
    assert summary["p95"].to_dict() == rows[numbers].quantile(0.95).to_dict()
    assert (
        summary["worst_rank"].to_dict() == rows.groupby("rank")[numbers].median().idxmax().to_dict()
    )

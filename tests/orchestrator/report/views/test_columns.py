from __future__ import annotations

import numpy as np

from orchestrator.report.views.columns import LINES, MOST_COLUMNS, memory, recorded
from orchestrator.stats.read.query import Rows
from tests.orchestrator.report.reading import charts_of, lines_of
from tests.orchestrator.stats.insight.runs import training


def test_memory_has_a_line_for_each_rank() -> None:
    held = np.full((200, 2), np.nan)
    held[::100] = [2**30, 2**31]
    charts = charts_of(memory(Rows.of(training(2, rss_bytes=held, cuda_reserved_bytes=2.0))).content)
    assert [*charts] == ["rss_bytes", "cuda_reserved_bytes"]
    assert lines_of(charts["rss_bytes"]) == {"rank 0": ([1, 101], [1, 1]), "rank 1": ([1, 101], [2, 2])}
    assert "memory_stats is off" in memory(Rows.of(training(2))).content


def test_memory_of_many_ranks_shows_the_largest_and_a_band() -> None:
    ranks = LINES + 4
    held = np.arange(1, ranks + 1) * 2**20 * np.ones((200, 1))
    chart = charts_of(memory(Rows.of(training(ranks, rss_bytes=held))).content)["rss_bytes"]
    assert [*lines_of(chart)] == ["all ranks", *(f"rank {rank}" for rank in range(4, ranks))]
    low, high, mean = (trace["y"][0] for trace in chart["data"][:3])
    assert (low, mean, high) == (1, 6.5, 12)


def test_a_column_that_no_other_view_shows_has_a_chart() -> None:
    charts = charts_of(recorded(Rows.of(training(2, grad_norm=2.5, loss=1.0, rss_bytes=5.0))).content)
    assert [*charts] == ["grad_norm"]
    assert lines_of(charts["grad_norm"])["grad_norm"][1][0] == 2.5
    assert "No other column" in recorded(Rows.of(training(2))).content


def test_columns_without_a_chart_are_named() -> None:
    content = str(
        recorded(Rows.of(training(2, iterations=4, **{f"x{place}": 1.0 for place in range(MOST_COLUMNS + 2)}))).content
    )
    assert len(charts_of(content)) == MOST_COLUMNS
    assert f"Without a chart: x{MOST_COLUMNS}, x{MOST_COLUMNS + 1}." in content

from __future__ import annotations

import numpy as np

from orchestrator.report.views.columns import LINES, MOST_COLUMNS, memory, recorded
from orchestrator.stats.read.query import Rows
from tests.orchestrator.report.reading import tables_of
from tests.orchestrator.stats.insight.runs import training


def test_each_rank_has_its_line() -> None:
    held = np.full((200, 2), np.nan)
    held[::100] = [2**30, 2**31]
    assert tables_of(memory(Rows.of(training(2, rss_bytes=held))).content) == {
        "rss_bytes by rank": [["iteration", "rank 0", "rank 1"], ["1", "1 GiB", "2 GiB"], ["101", "1 GiB", "2 GiB"]]
    }


def test_of_many_ranks_those_that_hold_most_and_all_together() -> None:
    ranks = LINES + 4
    held = np.arange(1, ranks + 1) * 2**20 * np.ones((200, 1))
    table = tables_of(memory(Rows.of(training(ranks, rss_bytes=held))).content)["rss_bytes by rank"]
    assert table[0][1:4] == ["all ranks, smallest", "all ranks", "all ranks, largest"]
    assert table[0][4:] == [f"rank {rank}" for rank in range(4, ranks)]
    assert table[1][1:4] == ["1 MiB", "6.5 MiB", "12 MiB"]


def test_every_column_of_bytes_has_a_panel_and_none_is_said() -> None:
    assert set(tables_of(memory(Rows.of(training(2, rss_bytes=1.0, cuda_reserved_bytes=2.0))).content)) == {
        "rss_bytes by rank",
        "cuda_reserved_bytes by rank",
    }
    assert "memory_stats is off" in str(memory(Rows.of(training(2))).content)


def test_what_no_other_view_shows_has_a_chart() -> None:
    tables = tables_of(recorded(Rows.of(training(2, grad_norm=2.5, loss=1.0, rss_bytes=5.0))).content)
    assert set(tables) == {"grad_norm"}
    assert tables["grad_norm"][1][1:] == ["2.5"] * 3


def test_of_very_many_columns_the_last_are_named() -> None:
    content = str(
        recorded(Rows.of(training(2, iterations=4, **{f"x{place}": 1.0 for place in range(MOST_COLUMNS + 2)}))).content
    )
    assert len(tables_of(content)) == MOST_COLUMNS
    assert f"Without a chart: x{MOST_COLUMNS}, x{MOST_COLUMNS + 1}." in content


def test_nothing_else_is_said() -> None:
    assert "No other column" in str(recorded(Rows.of(training(2))).content)

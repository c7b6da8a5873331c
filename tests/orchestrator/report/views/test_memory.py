from __future__ import annotations

import numpy as np

from orchestrator.report.views.memory import LINES, memory
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

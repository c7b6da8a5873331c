import numpy as np

from orchestrator.report.views.memory import MAX_LINES, render_memory
from orchestrator.tables.query import Rows
from tests.orchestrator.doctor.runs import training
from tests.orchestrator.report.reading import charts_of, lines_of


def test_memory_has_a_line_for_each_rank() -> None:
    held = np.full((200, 2), np.nan)
    held[::100] = [2**30, 2**31]
    charts = charts_of(
        render_memory(Rows.wrap(training(2, rss_bytes=held, cuda_reserved_bytes=2.0))).content
    )
    assert [*charts] == ["rss_bytes", "cuda_reserved_bytes"]
    assert lines_of(charts["rss_bytes"]) == {
        "rank 0": ([1, 101], [1, 1]),
        "rank 1": ([1, 101], [2, 2]),
    }
    assert "memory_stats is off" in render_memory(Rows.wrap(training(2))).content


def test_memory_of_many_ranks_shows_the_largest_and_a_band() -> None:
    ranks = MAX_LINES + 4
    held = np.arange(1, ranks + 1) * 2**20 * np.ones((200, 1))
    chart = charts_of(render_memory(Rows.wrap(training(ranks, rss_bytes=held))).content)[
        "rss_bytes"
    ]
    assert [*lines_of(chart)] == ["all ranks", *(f"rank {rank}" for rank in range(4, ranks))]
    low, high, mean = (trace["y"][0] for trace in chart["data"][:3])
    assert (low, mean, high) == (1, 6.5, 12)

import numpy as np
import pandas as pd
import pytest

from orchestrator.report.page import Section
from orchestrator.report.views.time import MAX_BARS, MAX_CELLS_ACROSS, render_spans
from orchestrator.tables.query import Rows
from tests.orchestrator.doctor.runs import slower, training
from tests.orchestrator.report.reading import charts_of, lines_of


def drawn(table: pd.DataFrame) -> Section:
    return render_spans(Rows.wrap(table), [])


def test_bars_are_the_means_of_each_rank() -> None:
    rows = training(2, change=slower("forward_s", 1, 0.02))
    bars = lines_of(charts_of(drawn(rows).content)["Time per iteration"])
    ranks, forward = bars["forward_s"]
    assert ranks == ["0", "1"]
    assert forward == pytest.approx(rows.groupby("rank")["forward_s"].mean() * 1000)
    totals = np.sum([heights for _, heights in bars.values()], axis=0)
    assert totals == pytest.approx(rows.groupby("rank")["step_s"].mean() * 1000)


def test_bar_of_many_ranks_is_the_one_with_most_work() -> None:
    ranks = 3 * MAX_BARS
    draw = np.random.default_rng(0).permutation(ranks) / 1000
    rows = pd.DataFrame(
        {
            "rank": range(ranks),
            "phase": "train",
            "iteration": 1,
            "forward_s": draw,
            "backward_s": 1.0,
        }
    )
    shown, _ = lines_of(
        charts_of(drawn(rows.assign(step_s=draw + 1)).content)["Time per iteration"]
    )["forward_s"]
    assert [int(rank) for rank in shown] == (
        draw.reshape(MAX_BARS, 3).argmax(axis=1) + 3 * np.arange(MAX_BARS)
    ).tolist()


def test_heat_maps_keep_maxima_and_omit_empty_spans() -> None:
    rows = training(2, 2 * MAX_CELLS_ACROSS, change=slower("data_wait_s", 1, {333: 5.0})).assign(
        checkpoint_s=0.0
    )
    maps = {
        trace["name"]: trace
        for trace in charts_of(drawn(rows).content)["Seconds by rank and iteration"]["data"]
    }
    assert "checkpoint_s" not in maps
    own_work = np.array(maps["own work"]["z"])
    assert own_work.shape == (2, MAX_CELLS_ACROSS)
    rank, column = np.unravel_index(own_work.argmax(), own_work.shape)
    assert (rank, maps["own work"]["x"][column]) == (1, "333-334")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["rank", "phase", "iteration"], "No training iteration was timed"),
        (["rank", "phase", "iteration", "step_s"], "perf_stats is off"),
    ],
)
def test_missing_times_are_explained(columns: list[str], words: str) -> None:
    assert words in drawn(training(2)[columns]).content

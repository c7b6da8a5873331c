from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from orchestrator.report.page import Section
from orchestrator.report.views.time import BARS, CELLS_ACROSS, CELLS_DOWN, hooks, spans
from orchestrator.stats.aggregate.blocks import own_work
from orchestrator.stats.insight.iteration_sample import sample_iterations
from orchestrator.stats.read.query import Rows
from tests.orchestrator.report.reading import parsed, tables_of, text_of
from tests.orchestrator.stats.insight.runs import costs, slower, training


def worked(row: pd.DataFrame) -> list[float]:
    return list(Rows.of(row).ask(f"select {own_work(row.columns)} as work from rows")["work"])


def drawn(table: pd.DataFrame) -> Section:
    rows = Rows.of(table)
    return spans(rows, sample_iterations(rows), [])


def test_own_work_is_all_but_the_waiting() -> None:
    row = pd.DataFrame({"forward_s": [1.0], "hooks_s": [2.0], "backward_s": [4.0], "step_s": [7.5]})
    assert worked(row) == [3]
    assert worked(row.assign(all_reduce_wait_s=0.5)) == [7]
    assert worked(row[["step_s"]]) == [7.5]


def test_bars_are_the_means_of_each_rank() -> None:
    rows = training(2, change=slower("forward_s", 1, 0.02))
    table = tables_of(drawn(rows).content)["Time per iteration"]
    means = rows.groupby("rank")[["forward_s", "step_s"]].mean()
    column = table[0].index("forward_s")
    assert [row[column] for row in table[1:]] == [f"{value * 1000:.3g} ms" for value in means["forward_s"]]
    assert [row[-1] for row in table[1:]] == [f"{value * 1000:.3g} ms" for value in means["step_s"]]


def test_of_many_ranks_the_one_with_most_work_stands_for_its_neighbours() -> None:
    ranks = 3 * BARS
    draw = np.random.default_rng(0).permutation(ranks) / 1000
    rows = pd.DataFrame(
        {
            "rank": range(ranks),
            "phase": "train",
            "iteration": 1,
            "forward_s": draw,
            "backward_s": 1.0,
            "step_s": draw + 1,
        }
    )
    shown = [int(row[0]) for row in tables_of(drawn(rows).content)["Time per iteration"][1:]]
    assert shown == (draw.reshape(BARS, 3).argmax(axis=1) + 3 * np.arange(BARS)).tolist()


def test_heat_maps_are_shrunk_and_name_the_worst() -> None:
    iterations = 2 * CELLS_ACROSS
    rows = training(2, iterations, change=slower("data_wait_s", 1, {333: 5.0}))
    content = parsed(drawn(rows).content)
    image = next(content.iter("img"))
    assert (int(image.get("data-width", "")), int(image.get("data-height", ""))) == (CELLS_ACROSS, 2)
    assert CELLS_DOWN >= 2
    captions = [text_of(caption) for caption in content.iter("figcaption")]
    own = next(caption for caption in captions if caption.startswith("own work"))
    assert "A cell is the largest of up to 1 rank by 2 iterations." in own
    assert own.endswith("rank 1 at iteration 334.")


def test_a_span_that_never_was_has_no_picture() -> None:
    rows = training(2).assign(checkpoint_s=0.0)
    assert "checkpoint_s, by rank" not in str(drawn(rows).content)


@pytest.mark.parametrize("columns", [["rank", "phase", "iteration"], ["rank", "phase", "iteration", "step_s"]])
def test_what_was_not_timed_is_said(columns: list[str]) -> None:
    told = str(drawn(training(2)[columns]).content)
    assert ("perf_stats is off" if "step_s" in columns else "No training iteration was timed") in told


def test_the_ledger_has_the_costliest_first() -> None:
    rows = training(2)
    ledger = costs(
        (0, "ema", "on_update", 100, 0.1), (1, "ema", "on_update", 100, 0.3), (0, "checkpoint", "on_save", 2, 1.0)
    )
    total = rows["step_s"].sum()
    assert tables_of(hooks(ledger, total).content)["Cost of each hook"][1:] == [
        ["checkpoint", "on_save", "2", "1 s", "500 ms", "0", f"{1 / total:.1%}"],
        ["ema", "on_update", "200", "400 ms", "2 ms", "1", f"{0.4 / total:.1%}"],
    ]


def test_without_a_ledger_it_says_so() -> None:
    assert "No hook was called" in str(hooks(costs(), 1.0).content)

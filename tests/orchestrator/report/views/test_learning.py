import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from orchestrator.report.metrics import find_best_and_last
from orchestrator.report.views.learning import render_learning
from orchestrator.report.views.time import render_spans
from orchestrator.tables.query import Rows
from orchestrator.units import format_value
from tests.orchestrator.doctor.runs import training
from tests.orchestrator.report.reading import charts_of, parsed, tables_of, text_of

REPORTS = [
    {
        "epoch": 0,
        "step": 100,
        "train/loss": 2.0,
        "val/loss": 3.0,
        "val/accuracy": 0.5,
        "train/iteration_s": 0.1,
        "memory/rss_bytes": 5,
    },
    {
        "epoch": 1,
        "step": 200,
        "train/loss": 1.0,
        "val/loss": 4.0,
        "val/accuracy": 0.25,
        "train/iteration_s": 0.1,
        "memory/rss_bytes": 5,
    },
]
EMPTY = Rows.wrap(pd.DataFrame(columns=["rank", "phase", "step"]))


def test_the_best_is_the_smallest_loss_and_the_largest_accuracy() -> None:
    assert tables_of(render_learning(EMPTY, REPORTS, {}).content)[
        "Each metric at its best and as last reported"
    ][1:] == [
        ["train/loss", "1", "2", "200", "1"],
        ["val/loss", "3", "1", "100", "4"],
        ["val/accuracy", "0.5", "1", "100", "0.25"],
    ]
    assert [*find_best_and_last(["val/f1"], REPORTS, {})] == []


@pytest.mark.parametrize(
    "ending", ["", "_s", "_per_s", "_percent", "_power_w", "_temperature_c", "_clock_mhz"]
)
def test_every_reported_number_has_a_chart(ending: str) -> None:
    """Among the times if it is one, otherwise among the metrics, with its best value."""
    rows = Rows.wrap(training(2))
    reports = [{"step": 10, f"val/top{ending}": 50.0}]
    name = f"top{ending}"
    metrics, times = (
        section.content
        for section in (render_learning(rows, reports, {}), render_spans(rows, reports))
    )
    charts = charts_of(metrics)
    of_times = charts_of(times)
    assert (name in charts, name in of_times) == (
        (False, True) if name.endswith("_s") else (True, False)
    )
    if name in charts:
        ((metric, *_, last),) = tables_of(metrics)["Each metric at its best and as last reported"][
            1:
        ]
        assert (metric, last) == (f"val/{name}", format_value(name, 50.0))


def test_metric_without_direction_has_no_best() -> None:
    drawn = render_learning(
        EMPTY,
        [{"epoch": 1, "step": 10, "val/score": 0.5}, {"epoch": 2, "step": 20, "val/score": 0.25}],
        {},
    ).content
    assert tables_of(drawn)["Each metric at its best and as last reported"][1:] == [
        ["val/score", "", "", "", "0.25"]
    ]
    assert "hooks.checkpoint: {best: val/score, mode: max}" in text_of(parsed(drawn))


def test_loss_chart_keeps_the_extremes() -> None:
    losses = np.linspace(3, 1, 400).reshape(200, 2)
    chart = charts_of(render_learning(Rows.wrap(training(2, loss=losses)), REPORTS, {}).content)[
        "loss"
    ]
    low, high, mean, train, val = chart["data"]
    assert np.allclose(
        [low["y"], high["y"], mean["y"]], [losses[:, 1], losses[:, 0], losses.mean(axis=1)]
    )
    assert (train["x"], train["y"], val["y"]) == ([100, 200], [2, 1], [3, 4])


def test_losses_that_are_not_finite_are_counted() -> None:
    losses = np.ones((200, 2))
    losses[7, 1] = np.nan
    table = pa.Table.from_pandas(training(2, loss=losses), preserve_index=False)
    said = "Not drawn: 1 of 400 values, because of NaN or infinity."
    assert said in render_learning(Rows.wrap(training(2, loss=losses)), [], {}).content
    # A loop of its own records the loss in every other iteration.
    some = pc.if_else(
        pc.equal(pc.bit_wise_and(table["iteration"], 1), 0), pa.array(losses.ravel()), None
    )
    rows = Rows.wrap(table.set_column(table.column_names.index("loss"), "loss", some))
    assert said.replace("400", "200") in render_learning(rows, [], {}).content

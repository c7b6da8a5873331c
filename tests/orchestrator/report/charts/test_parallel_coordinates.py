import numpy as np
import pandas as pd

from orchestrator.report.charts.parallel_coordinates import draw_parallel_coordinates
from tests.orchestrator.report.reading import charts_of


def test_parallel_coordinates_have_a_height_for_each_value() -> None:
    trials = pd.DataFrame(
        {
            "rate": [0.01, 0.1, 1.0],
            "kind": ["b", None, "a"],
            "step_s": [0.1, 0.2, 0.3],
            "same": [1024] * 3,
        },
        index=["t0", "t1", "t2"],
    )
    chart = charts_of(draw_parallel_coordinates("x", trials, "t0"))["x"]
    traces = {trace["name"]: trace for trace in chart["data"]}
    assert [*traces] == ["t2", "t1", "t0"]
    assert traces["t2"]["opacity"] < traces["t1"]["opacity"] < traces["t0"]["opacity"] == 1
    heights = np.array([traces[trial]["y"] for trial in trials.index], dtype=float)
    assert np.allclose(
        heights.T, [[0, 0.5, 1], [1, np.nan, 0], [0, 0.5, 1], [0, 0, 0]], equal_nan=True
    )
    assert traces["t0"]["text"] == ["0.01", "b", "100 ms", "1,024"]
    long = trials.rename(columns={"rate": f"hooks.{'x' * 40}.decay"})
    chart_of_long = charts_of(draw_parallel_coordinates("x", long, "t0"))["x"]
    assert chart_of_long["layout"]["xaxis"]["ticktext"][:2] == [f"…{'x' * 15}.decay", "kind"]
    assert chart_of_long["data"][0]["customdata"][0] == long.columns[0]
    labels = [(label["x"], label["text"]) for label in chart["layout"]["annotations"]]
    assert labels == [
        *((0, text) for text in ("0.01", "0.1", "1")),
        (1, "a"),
        (1, "b"),
        *((2, text) for text in ("100 ms", "200 ms", "300 ms")),
        (3, "1,024"),
    ]


def test_parallel_coordinates_leave_out_infinite_values() -> None:
    trials = pd.DataFrame(
        {"loss": [1.0, 3.0, np.inf], "other": [1.0, 2.0, -np.inf]}, index=["t0", "t1", "t2"]
    )
    traces = charts_of(draw_parallel_coordinates("x", trials, "t0"))["x"]["data"]
    heights = [np.array(trace["y"], dtype=float) for trace in reversed(traces)]
    np.testing.assert_equal(heights, [[0, 0], [1, 1], [np.nan, np.nan]])

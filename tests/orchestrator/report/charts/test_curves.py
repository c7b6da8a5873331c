import numpy as np

from orchestrator.report.charts.curves import MAX_POINTS, draw_curves
from tests.orchestrator.report.reading import charts_of

STEPS = np.array([1.0, 2.0, 3.0])


def test_curve_of_the_best_trial_is_strongest_and_on_top() -> None:
    many = np.arange(MAX_POINTS * 3.0)
    drawn = {"best": (STEPS, STEPS), "middle": (many, many), "worst": (STEPS[:1], STEPS[:1])}
    traces = charts_of(draw_curves("x", "loss", drawn, "best"))["x"]["data"]
    assert [trace["name"] for trace in traces] == ["worst", "middle", "best"]
    assert traces[0]["opacity"] < traces[1]["opacity"] < traces[2]["opacity"] == 1
    middle = traces[1]["x"]
    assert MAX_POINTS * 0.9 < len(middle) <= MAX_POINTS
    assert (middle[0], middle[-1]) == (0, many[-1])


def test_long_curve_of_a_trial_keeps_its_extremes() -> None:
    steps = np.arange(1000.0)
    values = np.sin(steps / 200)
    values[[501, 777]] = 9, -5
    (trace,) = charts_of(draw_curves("x", "loss", {"a": (steps, values)}, "a"))["x"]["data"]
    assert len(trace["x"]) <= MAX_POINTS
    assert {(501, 9), (777, -5)} <= {*zip(trace["x"], trace["y"], strict=True)}
    assert trace["x"] == sorted(trace["x"])

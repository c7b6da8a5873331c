import numpy as np

from orchestrator.report.charts.lines import Line, draw_lines
from tests.orchestrator.report.reading import charts_of

STEPS = np.array([1.0, 2.0, 3.0])


def test_a_band_is_drawn_below_its_line() -> None:
    chart = charts_of(
        draw_lines("x", "step_s", [Line("x", STEPS, STEPS, low=STEPS - 1, high=STEPS + 1)], "step")
    )["x"]
    low, high, line = chart["data"]
    assert (low["y"], high["y"], line["y"]) == ([0, 1, 2], [2, 3, 4], [1, 2, 3])
    assert (high["fill"], line["customdata"]) == ("tonexty", [[0, 2], [1, 3], [2, 4]])

import re

import numpy as np
import pandas as pd
import pytest

from orchestrator.report import figures
from orchestrator.report.figures import (
    Line,
    draw_curves,
    draw_heat_maps,
    draw_lines,
    draw_scatter,
    draw_stacks,
)
from orchestrator.report.parallel_coordinates import draw_parallel_coordinates
from tests.orchestrator.report.reading import charts_of, lines_of

HOSTILE = "<img src=x onerror=alert(1)></script><b>&lt;</b><a href='https://x.y'>"
STEPS = np.array([1.0, 2.0, 3.0])


def test_user_text_is_escaped_in_charts() -> None:
    spans = pd.DataFrame({"forward_s": [1.0]}, index=[HOSTILE])
    trials = pd.DataFrame({HOSTILE: [HOSTILE, "b"], "y": [1.0, 2.0]}, index=[HOSTILE, "t"])
    markup = [
        draw_lines(HOSTILE, HOSTILE, [Line(HOSTILE, STEPS, STEPS)], HOSTILE, HOSTILE),
        draw_curves(HOSTILE, HOSTILE, {HOSTILE: (STEPS, STEPS)}, HOSTILE),
        draw_stacks(HOSTILE, spans, HOSTILE),
        draw_scatter(
            HOSTILE, pd.DataFrame({HOSTILE: [1.0], "y": [2.0]}, index=[HOSTILE]), [HOSTILE]
        ),
        draw_parallel_coordinates(HOSTILE, trials, HOSTILE),
    ]
    for drawn in markup:
        assert not re.search("<(img|b>&|a )", drawn.replace("<b>&lt;img", ""))
        assert drawn.count("</script>") == 1
        data = drawn.split('type="application/json">')[1]
        assert "&lt;img src=x" in data  # Plotly decodes it, and formats no tag of it.
        assert not re.search(r"\\u003c(?!br>|extra>|/extra>)", data)
    assert HOSTILE in lines_of(charts_of(markup[0])[HOSTILE])


@pytest.mark.parametrize(
    ("name", "values", "suffix", "shown", "kind"),
    [
        ("step_s", [0.002, 0.004], " ms", [2, 4], None),
        ("wall_s", [7200.0, 3600.0], " h", [2, 1], None),
        ("rss_bytes", [2**30, 2**31], " GiB", [1, 2], None),
        ("rss_bytes", [2**20, 2**31], " GiB", [2**-10, 2], None),
        ("samples_per_s", [10, 20], "/s", [10, 20], None),
        ("loss", [1.0, 100.0], "", [1, 100], "log"),
        ("loss", [1.0, 99.0], "", [1, 99], None),
        ("loss", [-1.0, 100.0], "", [-1, 100], None),
        ("loss", [np.nan, np.inf], "", [np.nan, np.inf], None),
    ],
)
def test_axis_has_the_unit_of_the_column(
    name: str, values: list[float], suffix: str, shown: list[float], kind: str
) -> None:
    chart = charts_of(
        draw_lines("x", name, [Line("x", STEPS[:2], np.array(values, dtype=float))], "step")
    )["x"]
    assert np.allclose(chart["data"][0]["y"], shown, equal_nan=True)
    axis = chart["layout"]["yaxis"]
    assert (axis["ticksuffix"], axis.get("type")) == (suffix, kind)


def test_axis_of_a_constant_begins_at_zero() -> None:
    chart = charts_of(draw_lines("lr", "lr", [Line("lr", STEPS, np.full(3, 0.01))], "iteration"))[
        "lr"
    ]
    assert chart["layout"]["yaxis"]["rangemode"] == "tozero"


def test_a_band_is_drawn_below_its_line() -> None:
    chart = charts_of(
        draw_lines("x", "step_s", [Line("x", STEPS, STEPS, low=STEPS - 1, high=STEPS + 1)], "step")
    )["x"]
    low, high, line = chart["data"]
    assert (low["y"], high["y"], line["y"]) == ([0, 1, 2], [2, 3, 4], [1, 2, 3])
    assert (high["fill"], line["customdata"]) == ("tonexty", [[0, 2], [1, 3], [2, 4]])


def test_curve_of_the_best_trial_is_strongest_and_on_top() -> None:
    many = np.arange(figures.MAX_POINTS * 3.0)
    drawn = {"best": (STEPS, STEPS), "middle": (many, many), "worst": (STEPS[:1], STEPS[:1])}
    traces = charts_of(draw_curves("x", "loss", drawn, "best"))["x"]["data"]
    assert [trace["name"] for trace in traces] == ["worst", "middle", "best"]
    assert traces[0]["opacity"] < traces[1]["opacity"] < traces[2]["opacity"] == 1
    middle = traces[1]["x"]
    assert figures.MAX_POINTS * 0.9 < len(middle) <= figures.MAX_POINTS
    assert (middle[0], middle[-1]) == (0, many[-1])


def test_long_curve_of_a_trial_keeps_its_extremes() -> None:
    steps = np.arange(1000.0)
    values = np.sin(steps / 200)
    values[[501, 777]] = 9, -5
    (trace,) = charts_of(draw_curves("x", "loss", {"a": (steps, values)}, "a"))["x"]["data"]
    assert len(trace["x"]) <= figures.MAX_POINTS
    assert {(501, 9), (777, -5)} <= {*zip(trace["x"], trace["y"], strict=True)}
    assert trace["x"] == sorted(trace["x"])


def test_a_heat_map_has_its_unit_and_one_is_visible() -> None:
    groups = pd.IntervalIndex.from_tuples([(0, 0), (1, 4)], closed="both")
    grids = {
        name: pd.DataFrame([[value, np.nan], [0, value]], groups, groups)
        for name, value in (("a", 0.002), ("b", 2.0))
    }
    chart = charts_of(draw_heat_maps("x", grids, ""))["x"]
    first, second = chart["data"]
    assert np.allclose(first["z"], [[2, np.nan], [0, 2]], equal_nan=True)
    assert (first["x"], first["y"], second["visible"]) == (["0", "1-4"], ["0", "1-4"], False)
    assert (first["colorbar"]["ticksuffix"], second["colorbar"]["ticksuffix"]) == (" ms", " s")
    (menu,) = chart["layout"]["updatemenus"]
    assert [button["args"][0]["visible"] for button in menu["buttons"]] == [
        [True, False],
        [False, True],
    ]

from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from orchestrator.report import figures
from orchestrator.report.binning import Grid
from orchestrator.report.figures import Line, curves, heat_maps, lines, parallel, scatter, stacks
from orchestrator.stats.aggregate.spans import SPANS
from tests.orchestrator.report.reading import charts_of, lines_of

Floats = NDArray[np.float64]
HOSTILE = "<img src=x onerror=alert(1)></script><b>&lt;</b><a href='https://x.y'>"
STEPS = np.array([1.0, 2.0, 3.0])
# How people see colors: Machado, Oliveira and Fernandes, 2009.
VISIONS = {
    "everybody": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(*colors: str) -> Floats:
    channels = np.array([[int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)] for color in colors])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(colors: Floats) -> Floats:
    xyz = np.clip(colors, 0, 1) @ XYZ.T / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


def contrasts(colors: list[str], page: str) -> Floats:
    """Return the contrast of each color with a background, as WCAG 2.2 computes it."""
    bright, ground = linear(*colors) @ XYZ[1], float((linear(page) @ XYZ[1])[0])
    return (np.maximum(bright, ground) + 0.05) / (np.minimum(bright, ground) + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_lines_and_text_contrast_with_the_page(theme: int) -> None:
    style = resources.files("orchestrator.report").joinpath("style.css").read_text()
    pairs = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", style)
    themed = {name: pair[theme] for name, *pair in pairs}
    assert contrasts([*figures.COLORS, figures.GREY], themed["page"]).min() >= 3
    texts = [themed[name] for name in ("ink", "soft", "accent", "bad", "good", "warn")]
    assert min(contrasts(texts, themed[ground]).min() for ground in ("page", "raised")) >= 4.5


@pytest.mark.parametrize("vision", VISIONS)
def test_any_two_colors_can_be_told_apart(vision: str) -> None:
    seen = lab(linear(*figures.COLORS, figures.GREY) @ np.array(VISIONS[vision]).T)
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
    assert apart[~np.eye(len(seen), dtype=bool)].min() >= 20
    assert {*figures.SPAN_COLORS} == {*SPANS}
    assert len({*figures.SPAN_COLORS.values()}) == len(SPANS)


def test_user_text_is_escaped_in_charts() -> None:
    spans = pd.DataFrame({"forward_s": [1.0]}, index=[HOSTILE])
    trials = pd.DataFrame({HOSTILE: [HOSTILE, "b"], "y": [1.0, 2.0]}, index=[HOSTILE, "t"])
    markup = [
        lines(HOSTILE, HOSTILE, [Line(HOSTILE, STEPS, STEPS)], HOSTILE, HOSTILE),
        curves(HOSTILE, HOSTILE, {HOSTILE: (STEPS, STEPS)}),
        stacks(HOSTILE, spans, HOSTILE),
        scatter(HOSTILE, pd.DataFrame({HOSTILE: [1.0], "y": [2.0]}, index=[HOSTILE]), [HOSTILE]),
        parallel(HOSTILE, trials, pd.Series(1.0, trials.index)),
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
    chart = charts_of(lines("x", name, [Line("x", STEPS[:2], np.array(values, dtype=float))], "step"))["x"]
    assert np.allclose(chart["data"][0]["y"], shown, equal_nan=True)
    axis = chart["layout"]["yaxis"]
    assert (axis["ticksuffix"], axis.get("type")) == (suffix, kind)


def test_axis_of_a_constant_begins_at_zero() -> None:
    chart = charts_of(lines("lr", "lr", [Line("lr", STEPS, np.full(3, 0.01))], "iteration"))["lr"]
    assert chart["layout"]["yaxis"]["rangemode"] == "tozero"


def test_a_band_is_drawn_below_its_line() -> None:
    chart = charts_of(lines("x", "step_s", [Line("x", STEPS, STEPS, low=STEPS - 1, high=STEPS + 1)], "step"))["x"]
    low, high, line = chart["data"]
    assert (low["y"], high["y"], line["y"]) == ([0, 1, 2], [2, 3, 4], [1, 2, 3])
    assert (high["fill"], line["customdata"]) == ("tonexty", [[0, 2], [1, 3], [2, 4]])


def test_curve_of_the_best_trial_is_strongest_and_on_top() -> None:
    many = np.arange(figures.MOST_POINTS * 3.0)
    drawn = {"best": (STEPS, STEPS), "middle": (many, many), "worst": (STEPS[:1], STEPS[:1])}
    traces = charts_of(curves("x", "loss", drawn))["x"]["data"]
    assert [trace["name"] for trace in traces] == ["worst", "middle", "best"]
    assert traces[0]["opacity"] < traces[1]["opacity"] < traces[2]["opacity"] == 1
    assert (traces[0]["mode"], traces[1]["mode"]) == ("markers", "lines")
    assert (len(traces[1]["x"]), traces[1]["x"][0], traces[1]["x"][-1]) == (figures.MOST_POINTS, 0, many[-1])


def test_parallel_coordinates_have_a_height_for_each_value() -> None:
    trials = pd.DataFrame(
        {"rate": [0.01, 0.1, 1.0], "kind": ["b", None, "a"], "step_s": [0.1, 0.2, 0.3], "same": [5, 5, 5]},
        index=["t0", "t1", "t2"],
    )
    chart = charts_of(parallel("x", trials, pd.Series([0.1, 1.0, 0.5], trials.index)))["x"]
    traces = {trace["name"]: trace for trace in chart["data"]}
    assert [*traces] == ["t0", "t2", "t1"]
    heights = np.array([traces[trial]["y"] for trial in trials.index], dtype=float)
    assert np.allclose(heights.T, [[0, 0.5, 1], [1, np.nan, 0], [0, 0.5, 1], [0, 0, 0]], equal_nan=True)
    assert traces["t0"]["text"] == ["0.01", "b", "100 ms", "5"]
    long = trials.rename(columns={"rate": f"hooks.{'x' * 40}.decay"})
    chart_of_long = charts_of(parallel("x", long, pd.Series(1.0, trials.index)))["x"]
    assert chart_of_long["layout"]["xaxis"]["ticktext"][:2] == [f"…{'x' * 15}.decay", "kind"]
    assert chart_of_long["data"][0]["customdata"][0] == long.columns[0]
    labels = [(label["x"], label["text"]) for label in chart["layout"]["annotations"]]
    assert labels == [
        *((0, text) for text in ("0.01", "0.1", "1")),
        (1, "a"),
        (1, "b"),
        *((2, text) for text in ("100 ms", "200 ms", "300 ms")),
        (3, "5"),
    ]


def test_a_heat_map_has_its_unit_and_one_is_visible() -> None:
    groups = np.array([[0, 0], [1, 4]])
    grids = {
        name: Grid(np.array([[value, np.nan], [0, value]]), groups, groups)
        for name, value in (("a", 0.002), ("b", 2.0))
    }
    chart = charts_of(heat_maps("x", grids, ""))["x"]
    first, second = chart["data"]
    assert np.allclose(first["z"], [[2, np.nan], [0, 2]], equal_nan=True)
    assert (first["x"], first["y"], second["visible"]) == (["0", "1-4"], ["0", "1-4"], False)
    assert (first["colorbar"]["ticksuffix"], second["colorbar"]["ticksuffix"]) == (" ms", " s")
    (menu,) = chart["layout"]["updatemenus"]
    assert [button["args"][0]["visible"] for button in menu["buttons"]] == [[True, False], [False, True]]

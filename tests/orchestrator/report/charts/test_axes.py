import numpy as np
import pytest

from orchestrator.report.charts.lines import Line, draw_lines
from tests.orchestrator.report.reading import charts_of

STEPS = np.array([1.0, 2.0, 3.0])


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

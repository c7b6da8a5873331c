import numpy as np
import pandas as pd

from orchestrator.report.charts.heat_maps import draw_heat_maps
from tests.orchestrator.report.reading import charts_of


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

import numpy as np
import pandas as pd

from orchestrator.report.views.spending import render_spending
from tests.orchestrator.report.reading import charts_of, lines_of


def test_time_per_iteration_of_the_best_trials() -> None:
    spans = pd.DataFrame(
        {"forward_s": [0.01, 0.02], "all_reduce_wait_s": [0.01, np.nan]}, index=["t1", "t0"]
    )
    bars = lines_of(charts_of(render_spending(spans).content)["Mean iteration of each trial"])
    assert bars == {
        "forward_s": (["t1", "t0"], [10, 20]),
        "all_reduce_wait_s": (["t1", "t0"], [10, 0]),
    }

import pandas as pd
import pytest

from orchestrator.report.views.front import render_front
from tests.orchestrator.report.reading import charts_of
from tests.orchestrator.report.views.swept import MAX, TRIALS


@pytest.mark.parametrize(
    ("trials", "objectives", "best"),
    [
        (TRIALS.assign(step_s=[0.01, 0.02] * 6), MAX, ["t10", "t11"]),
        (TRIALS.assign(cost=1.0), {"val/accuracy": "max", "cost": "min"}, ["t11"]),
    ],
)
def test_front_uses_the_metrics_or_one_metric_and_step_s(
    trials: pd.DataFrame, objectives: dict[str, str], best: list[str]
) -> None:
    (chart,) = charts_of(render_front(trials, objectives).content).values()
    dominated, on_front = chart["data"]
    assert on_front["text"] == best
    assert {*dominated["text"]} == {*trials.index} - {*best}

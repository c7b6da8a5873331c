import pytest

from orchestrator.report.charts.curves import BEST
from orchestrator.report.views.coordinates import render_coordinates
from orchestrator.report.views.progress import render_progress
from tests.orchestrator.report.reading import charts_of, lines_of
from tests.orchestrator.report.views.swept import MAX, TRIALS


def test_every_trial_has_a_curve() -> None:
    reports = {
        "t0": [{"step": 1, "val/accuracy": 0.25}, {"step": 2, "val/accuracy": 0.75}],
        "t1": [{"step": 1, "val/accuracy": 0.5}],
        "t2": [],
    }
    curves = lines_of(charts_of(render_progress(reports, MAX, 3, "t0").content)["val/accuracy"])
    assert curves == {"t0": ([1, 2], [0.25, 0.75]), "t1": ([1], [0.5])}


@pytest.mark.parametrize("best", ["t2", None])
def test_best_trial_alone_is_orange(best: str | None) -> None:
    """It may lack one of the metrics. A sweep whose trials all failed has none."""
    reports = {f"t{index}": [{"step": 1, "val/accuracy": 0.5}] for index in range(3)}
    for content in (
        render_progress(reports, MAX, 3, best).content,
        render_coordinates(TRIALS.loc[["t0", "t1", "t2"]], MAX, best).content,
    ):
        (chart,) = charts_of(content).values()
        orange = [trace["name"] for trace in chart["data"] if trace["line"]["color"] == BEST]
        assert orange == [best] * (best is not None)
        assert ("orange" in content) == (best is not None)

from orchestrator.report.views.coordinates import render_coordinates
from tests.orchestrator.report.reading import charts_of
from tests.orchestrator.report.views.swept import MAX, TRIALS


def test_coordinates_have_a_labeled_axis_for_each_value_and_metric() -> None:
    (chart,) = charts_of(render_coordinates(TRIALS[::-1], MAX, "t11").content).values()
    labels = [label["text"] for label in chart["layout"]["annotations"]]
    assert labels[:7] == ["0.001", "0.00562", "0.0316", "0.178", "1", "8", "16"]
    assert chart["layout"]["xaxis"]["ticktext"] == ["lr", "width", "val/accuracy", "step_s"]

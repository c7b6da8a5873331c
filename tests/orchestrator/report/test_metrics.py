"""Reported metrics: their phases, best values and points."""

from orchestrator.report.metrics import group_metrics, select_points

REPORTS = [
    {
        "epoch": 0,
        "step": 100,
        "train/loss": 2.0,
        "val/loss": 3.0,
        "val/accuracy": 0.5,
        "train/iteration_s": 0.1,
        "memory/rss_bytes": 5,
    },
    {
        "epoch": 1,
        "step": 200,
        "train/loss": 1.0,
        "val/loss": 4.0,
        "val/accuracy": 0.25,
        "train/iteration_s": 0.1,
        "memory/rss_bytes": 5,
    },
]


def test_metrics_are_grouped_by_name() -> None:
    assert group_metrics(REPORTS)["loss"] == {"train": "train/loss", "val": "val/loss"}
    assert [*group_metrics(REPORTS)] == ["loss", "accuracy", "iteration_s", "memory/rss_bytes"]


def test_what_a_hook_reports_without_a_phase_is_a_metric_too() -> None:
    grouped = group_metrics([{"epoch": 0, "step": 1, "val/gain": 0.5, "gain": 0.25}])
    assert grouped == {"gain": {"val": "val/gain", "report": "gain"}}


def test_metric_without_numbers_has_no_points() -> None:
    steps, values = select_points(
        "val/loss", [{"step": 1, "val/loss": None}, {"val/loss": 2.0}, {"step": 3, "val/loss": 0.5}]
    )
    assert (steps.tolist(), values.tolist()) == ([3], [0.5])

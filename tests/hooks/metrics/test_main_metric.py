"""Which metric is the main one."""

from hooks.metrics.main_metric import choose_main_metric, list_val_metrics


def test_speed_and_memory_are_no_main_metric() -> None:
    reported = [
        "val/loss",
        "val/score",
        "val/samples_per_s",
        "val/iteration_s",
        "val/peak_rss_bytes",
    ]
    assert choose_main_metric(reported, {}) == "val/loss"


def test_losses_and_their_terms_come_after_other_metrics() -> None:
    """A phase reports the terms of a loss first, then their sum and the metrics. MMEngine's `auto`
    takes the first metric of its evaluator, which has no losses."""
    reported = ["val/loss_cls", "val/aux_loss", "val/loss", "val/accuracy", "val/score"]
    assert list_val_metrics(reported) == [
        "val/accuracy",
        "val/score",
        "val/loss",
        "val/loss_cls",
        "val/aux_loss",
    ]
    assert choose_main_metric(reported, {}) == "val/accuracy"
    assert choose_main_metric(reported[:3], {}) == "val/loss"

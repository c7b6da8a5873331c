from hooks.metrics.names import list_known


def test_a_long_list_of_metrics_is_cut_with_those_of_validation_first() -> None:
    names = [*(f"train/m{number}" for number in range(9)), "val/loss"]
    shown = ", ".join(["val/loss", *names[:7]])
    assert list_known(names) == f"available: {shown} and 2 more"

"""The importance of parameters, for functions whose answer is known."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kruskal

from orchestrator.sweeps.results import importance
from orchestrator.sweeps.results.importance import compute_importance, make_importance_table


def drawn(count: int, seed: int = 0) -> pd.DataFrame:
    """Trials of lr (over three decades), width (one of three) and noise, which does nothing."""
    random = np.random.RandomState(seed)
    return pd.DataFrame(
        {
            "config/noise": random.rand(count),
            "config/lr": 10 ** random.uniform(-3, 0, count),
            "config/width": random.choice([16, 32, 64], count),
        }
    )


def test_parameters_are_important_in_the_order_of_their_effects_on_ranks() -> None:
    """A diverged trial, whose loss is infinite, counts like the worst."""
    table = drawn(200)
    table["loss"] = 3 * np.log10(table["config/lr"]) + np.log2(table["config/width"])
    shares = compute_importance(table, "loss")
    assert [*shares.index] == ["lr", "width", "noise"]
    assert shares.sum() == pytest.approx(1)
    assert shares["lr"] > 0.6
    assert shares["noise"] < 0.05
    assert compute_importance(table.assign(loss=np.exp(table["loss"])), "loss").equals(shares)
    diverged = table["loss"].where(table.index != table["loss"].idxmax(), math.inf)
    assert compute_importance(table.assign(loss=diverged), "loss").equals(shares)


def test_a_parameter_of_a_hook_that_is_off_counts_where_the_hook_is_on() -> None:
    random = np.random.RandomState(1)
    on = random.rand(300) < 0.5
    decay = np.where(on, random.rand(300), np.nan)
    table = pd.DataFrame(
        {
            "config/hooks.ema": np.where(on, "{}", "null"),
            "config/hooks.ema.decay": decay,
            "config/noise": random.rand(300),
        }
    )
    by_decay = table.assign(accuracy=np.where(on, np.nan_to_num(decay), 0.5))
    by_switch = table.assign(accuracy=np.where(on, 1.0, 0.0) + 0.01 * random.rand(300))
    assert compute_importance(by_decay, "accuracy").idxmax() == "hooks.ema.decay"
    assert compute_importance(by_switch, "accuracy")["hooks.ema"] > 0.8


def test_the_variance_between_groups_is_kruskal_and_wallis_statistic() -> None:
    """Epsilon squared of two parameters, one of which explains no more than chance."""
    table = drawn(40).drop(columns="config/lr")
    table["loss"] = table["config/width"] + 20 * np.random.RandomState(2).rand(40)
    groups = [own["loss"] for _, own in table.groupby("config/width")]
    effect = (kruskal(*groups).statistic - len(groups) + 1) / (40 - len(groups))
    fifths = [
        own for _, own in table.groupby(pd.qcut(table["config/noise"], 5, labels=False))["loss"]
    ]
    other = max(0, (kruskal(*fifths).statistic - 4) / (40 - 5))
    assert compute_importance(table, "loss")["width"] == pytest.approx(effect / (effect + other))
    assert compute_importance(table.assign(loss=1.0, **{"config/same": 3}), "loss").tolist() == [
        0,
        0,
        0,
    ]


def test_the_spread_is_the_standard_error_of_a_mean_where_a_share_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of n values x, that is the root of the sum of (x - mean)^2, over n."""

    def mean(units: pd.DataFrame, metric: str) -> pd.Series:
        return pd.Series({"a": units[metric].mean(), "b": 1 - units[metric].mean()})

    monkeypatch.setattr(importance, "compute_importance", mean)
    monkeypatch.setattr(importance, "N_RESAMPLES", 500)
    scores = np.array([0.1, 0.4, 0.4, 0.7, 0.9])
    table = make_importance_table(pd.DataFrame({"score": scores}), "score")
    assert table["importance"].to_dict() == pytest.approx({"a": 0.5, "b": 0.5})
    expected = np.sqrt(((scores - scores.mean()) ** 2).sum()) / 5
    assert table["std_error"].tolist() == pytest.approx([expected] * 2, rel=0.1)
    monkeypatch.setattr(importance, "MAX_RESAMPLE_SIZE", 3)
    smaller_sets = make_importance_table(pd.DataFrame({"score": scores}), "score")
    assert smaller_sets["std_error"].tolist() == pytest.approx([expected] * 2, rel=0.1)


def test_spread_shrinks_with_trials_and_exceeds_the_share_of_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importance, "N_RESAMPLES", 25)
    tables = {}
    for count in (12, 240):
        table = drawn(count, seed=1)
        noise = np.random.RandomState(4).randn(count)
        table["loss"] = 2 * np.log10(table["config/lr"]) + np.log2(table["config/width"]) + noise
        tables[count] = make_importance_table(table, "loss")
    is_certain = (tables[240]["importance"] > 2 * tables[240]["std_error"]).to_dict()
    assert is_certain == {"lr": True, "width": True, "noise": False}
    spreads = [table.loc["lr", "std_error"] for table in tables.values()]
    assert spreads == sorted(spreads, reverse=True)

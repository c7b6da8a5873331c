"""What a table of trials tells: the front by brute force, importance by functions whose answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kruskal

from orchestrator.sweeps.results import analysis
from orchestrator.sweeps.results.analysis import (
    aggregate_repeats,
    configurations_table,
    importance,
    importance_table,
    non_dominated,
)

NUMBERS = st.one_of(st.integers(0, 4).map(float), st.just(math.nan), st.just(math.inf))
MODES = st.sampled_from(["max", "min"])


def beats(one: list[float], other: list[float], modes: list[str]) -> bool:
    as_good = all(a >= b if mode == "max" else a <= b for a, b, mode in zip(one, other, modes, strict=True))
    return as_good and one != other


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 3).flatmap(
        lambda k: st.tuples(
            st.lists(st.lists(NUMBERS, min_size=k, max_size=k), max_size=12), st.lists(MODES, min_size=k, max_size=k)
        )
    )
)
def test_the_front_is_who_no_one_beats(case: tuple[list[list[float]], list[str]]) -> None:
    rows, modes = case
    names = [f"m{index}" for index in range(len(modes))]
    front = non_dominated(pd.DataFrame(rows, columns=names), dict(zip(names, modes, strict=True)))
    judged = {index: row for index, row in enumerate(rows) if not any(math.isnan(value) for value in row)}
    expected = [i for i, row in judged.items() if not any(beats(other, row, modes) for other in judged.values())]
    assert sorted(front.index) == expected
    firsts = front["m0"].tolist()
    assert firsts == sorted(firsts, reverse=modes[0] == "max")


def test_equal_trials_stay_together_and_the_best_come_first() -> None:
    table = pd.DataFrame({"a": [1, 2, 2, 3, None], "b": [1, 5, 5, 9, 0]}, index=["p", "q", "r", "s", "t"])
    assert [*non_dominated(table, {"a": "max", "b": "min"}).index] == ["s", "q", "r", "p"]


# Importance


def test_repeats_are_judged_by_those_that_ended_well_and_whole_numbers_stay_whole() -> None:
    columns = ["configuration", "status", "config/seed", "config/width", "config/lr", "val/loss"]
    rows = [
        (0, "finished", 0, 16, 0.5, 0.4),
        (0, "failed", 1, 16, 0.5, 0.9),
        (1, "finished", 0, 32, 0.5, 0.6),
        (1, "stopped", 1, 32, 0.5, 0.8),
    ]
    trials = pd.DataFrame(rows, [f"trial-000{place}" for place in range(4)], columns)
    table = configurations_table(trials, "val/loss", "min")
    means = aggregate_repeats(trials, "val/loss", "min", "mean").set_index("configuration")["val/loss"]
    assert table["mean"].to_dict() == means.to_dict() == pytest.approx({1: 0.7, 0: 0.4})
    assert table["config/width"].tolist() == [32, 16]
    assert table["config/width"].dtype == "int64"


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


METHODS = [
    "variance",
    pytest.param("ped_anova", marks=pytest.mark.skipif(not analysis.find_spec("optuna"), reason="needs optuna")),
]


@pytest.mark.parametrize("method", METHODS)
def test_what_the_metric_is_made_of_matters_in_that_order(method: str) -> None:
    table = drawn(200)
    table["loss"] = 3 * np.log10(table["config/lr"]) + np.log2(table["config/width"])
    shares = importance(table, "loss", "min", method)
    assert [*shares.index] == ["lr", "width", "noise"]
    assert shares.sum() == pytest.approx(1)
    assert shares["lr"] > 0.6
    assert shares["noise"] < 0.05
    assert shares.name == method


@pytest.mark.parametrize("method", METHODS)
def test_only_the_order_of_the_metric_counts(method: str) -> None:
    """A diverged trial, whose loss is infinite, weighs as the worst one does; one without a metric not at all."""
    table = drawn(60)
    table["loss"] = np.log10(table["config/lr"])
    plain = importance(table, "loss", "min", method)
    worst = table["loss"].idxmax()
    assert importance(table.assign(loss=np.exp(table["loss"])), "loss", "min", method).equals(plain)
    assert importance(
        table.assign(loss=table["loss"].where(table.index != worst, math.inf)), "loss", "min", method
    ).equals(plain)
    more = pd.concat([table, drawn(5, seed=3).assign(loss=math.nan)], ignore_index=True)
    assert importance(more, "loss", "min", method).equals(plain)


@pytest.mark.parametrize("method", METHODS)
def test_a_parameter_of_a_hook_that_is_off_is_judged_where_it_is_on(method: str) -> None:
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
    of_decay = table.assign(accuracy=np.where(on, np.nan_to_num(decay), 0.5))
    of_switch = table.assign(accuracy=np.where(on, 1.0, 0.0) + 0.01 * random.rand(300))
    assert importance(of_decay, "accuracy", "max", method).idxmax() == "hooks.ema.decay"
    switch = importance(of_switch, "accuracy", "max", method)
    assert switch.idxmax() == "hooks.ema"
    assert switch["hooks.ema"] > 0.8


def test_the_variance_between_groups_is_kruskal_and_wallis_statistic() -> None:
    """Epsilon squared of two parameters, of which one holds as much as chance would put there."""
    table = drawn(40).drop(columns="config/lr")
    table["loss"] = table["config/width"] + 20 * np.random.RandomState(2).rand(40)
    groups = [own["loss"] for _, own in table.groupby("config/width")]
    statistic = kruskal(*groups).statistic
    effect = (statistic - len(groups) + 1) / (40 - len(groups))
    fifths = [own for _, own in table.groupby(pd.qcut(table["config/noise"], 5, labels=False))["loss"]]
    other = max(0, (kruskal(*fifths).statistic - 4) / (40 - 5))
    shares = importance(table, "loss", "min", "variance")
    assert shares["width"] == pytest.approx(effect / (effect + other))


@pytest.mark.parametrize("method", METHODS)
def test_where_nothing_differs_nothing_mattered(method: str) -> None:
    table = drawn(12).assign(loss=1.0, **{"config/same": 3})
    assert importance(table, "loss", "min", method)["same"] == 0
    if method == "variance":
        assert importance(table, "loss", "min", method).tolist() == [0, 0, 0, 0]


def test_the_spread_is_the_standard_error_of_a_mean_where_a_share_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of n values x the mean's is the root of the sum of (x - mean)^2, over n: what the bootstrap comes to with many
    sets."""

    def mean(values: pd.DataFrame, metric: pd.Series, mode: str) -> pd.Series:
        return pd.Series({"config/a": metric.mean(), "config/b": 1 - metric.mean()})

    monkeypatch.setitem(analysis.METHODS, "mean", mean)
    monkeypatch.setattr(analysis, "RESAMPLES", 500)
    reached = np.array([0.1, 0.4, 0.4, 0.7, 0.9])
    table = pd.DataFrame({"config/a": 1, "config/b": 1, "score": reached})
    expected = np.sqrt(((reached - reached.mean()) ** 2).sum()) / 5
    found = importance_table(table, "score", "max", "mean")
    assert found["importance"].to_dict() == pytest.approx({"a": 0.5, "b": 0.5})
    assert found["spread"].tolist() == pytest.approx([expected] * 2, rel=0.1)
    # Of trials that repeat each other the mean counts, and their seed is no parameter.
    seeds = [
        table.assign(**{"configuration": range(5), "status": "finished", "config/seed": seed, "score": reached + off})
        for seed, off in enumerate((0.05, -0.05))
    ]
    repeated = pd.concat(seeds, ignore_index=True)
    assert importance_table(repeated, "score", "max", "mean")["spread"].tolist() == pytest.approx(
        found["spread"].tolist()
    )
    # Of very many not all are drawn, and the spread is still that of all.
    monkeypatch.setattr(analysis, "RESAMPLED", 3)
    assert importance_table(table, "score", "max", "mean")["spread"].tolist() == pytest.approx([expected] * 2, rel=0.1)


def test_with_more_trials_the_spread_is_smaller_and_what_does_nothing_lies_within_it() -> None:
    """Of 40 sweeps of 60 trials the shares of lr had a standard deviation of 0.08, of 24 trials 0.14, of 12 0.24."""
    found = {}
    for count in (12, 24, 60, 240):
        table = drawn(count, seed=1)
        table["loss"] = (
            2 * np.log10(table["config/lr"]) + np.log2(table["config/width"]) + np.random.RandomState(4).randn(count)
        )
        found[count] = importance_table(table, "loss", "min", "variance")
    assert (found[240]["importance"] > 2 * found[240]["spread"]).to_dict() == {
        "lr": True,
        "width": True,
        "noise": False,
    }
    spreads = [table.loc["lr", "spread"] for table in found.values()]
    assert spreads == sorted(spreads, reverse=True)
    assert 0.04 < found[60].loc["lr", "spread"] < 0.16


def test_without_optuna_the_variance_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        return None

    monkeypatch.setattr(analysis, "find_spec", nothing)
    assert analysis.default_method() == "variance"

"""The Pareto front against brute force, and importance against functions whose answer is known."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kruskal

from orchestrator.sweeps.results import analysis
from orchestrator.sweeps.results.analysis import (
    aggregate_repeats,
    compute_importance,
    find_pareto_front,
    make_configurations_table,
    make_importance_table,
    select_candidates,
)

NUMBERS = st.one_of(st.integers(0, 4).map(float), st.just(math.nan), st.just(math.inf))
STATUSES = st.sampled_from(["finished", "stopped", "running", "failed"])
MODES = st.sampled_from(["max", "min"])


def beats(row: list[float], other: list[float], modes: list[str]) -> bool:
    as_good = all(
        a >= b if mode == "max" else a <= b for a, b, mode in zip(row, other, modes, strict=True)
    )
    return as_good and row != other


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 3).flatmap(
        lambda k: st.tuples(
            st.lists(st.tuples(st.lists(NUMBERS, min_size=k, max_size=k), STATUSES), max_size=12),
            st.lists(MODES, min_size=k, max_size=k),
        )
    )
)
def test_pareto_front_is_not_dominated(
    case: tuple[list[tuple[list[float], str]], list[str]],
) -> None:
    """Failed trials are not on it."""
    trials, modes = case
    names = [f"m{index}" for index in range(len(modes))]
    table = pd.DataFrame([[*row, status] for row, status in trials], columns=[*names, "status"])
    front = find_pareto_front(table, dict(zip(names, modes, strict=True)))
    rated = {
        index: row
        for index, (row, status) in enumerate(trials)
        if status != "failed" and not any(map(math.isnan, row))
    }
    expected = [
        i
        for i, row in rated.items()
        if not any(beats(other, row, modes) for other in rated.values())
    ]
    assert sorted(front.index) == expected
    firsts = front["m0"].tolist()
    assert firsts == sorted(firsts, reverse=modes[0] == "max")


def test_configurations_count_trials_that_ended_well() -> None:
    columns = ["configuration", "status", "config/seed", "config/width", "config/lr", "val/loss"]
    rows = [
        (0, "finished", 0, 16, 0.5, 0.4),
        (0, "failed", 1, 16, 0.5, 0.9),
        (1, "finished", 0, 32, 0.5, 0.6),
        (1, "stopped", 1, 32, 0.5, 0.8),
    ]
    trials = pd.DataFrame(rows, [f"trial-000{number}" for number in range(4)], columns)
    table = make_configurations_table(trials, "val/loss", "min")
    means = aggregate_repeats(trials, "val/loss", "min", "mean").set_index("configuration")[
        "val/loss"
    ]
    assert table["mean"].to_dict() == means.to_dict() == pytest.approx({1: 0.7, 0: 0.4})
    assert table["config/width"].tolist() == [32, 16]
    assert table["config/width"].dtype == "int64"


def test_trial_that_breaks_a_constraint_takes_its_configuration_out() -> None:
    columns = ["configuration", "status", "val/loss", "step_s", "infeasible"]
    rows = [
        (0, "finished", 0.1, 1.0, None),
        (0, "finished", 0.2, 1.0, "val/loss is 0.2, not <= 0.15"),
        (1, "finished", 0.3, 2.0, None),
        (1, "finished", 0.5, 2.0, None),
    ]
    trials = pd.DataFrame(rows, [f"trial-000{number}" for number in range(4)], columns)
    units = aggregate_repeats(trials, "val/loss", "min", "mean")
    assert units.set_index("configuration")["val/loss"].to_dict() == pytest.approx({1: 0.4})
    front = find_pareto_front(trials, {"val/loss": "min", "step_s": "min"})
    assert front.index.tolist() == ["trial-0002"]
    assert select_candidates(trials.iloc[:2], "val/loss").empty


# Importance


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

    monkeypatch.setattr(analysis, "compute_importance", mean)
    monkeypatch.setattr(analysis, "N_RESAMPLES", 500)
    scores = np.array([0.1, 0.4, 0.4, 0.7, 0.9])
    table = make_importance_table(pd.DataFrame({"score": scores}), "score")
    assert table["importance"].to_dict() == pytest.approx({"a": 0.5, "b": 0.5})
    expected = np.sqrt(((scores - scores.mean()) ** 2).sum()) / 5
    assert table["std_error"].tolist() == pytest.approx([expected] * 2, rel=0.1)
    monkeypatch.setattr(analysis, "MAX_RESAMPLE_SIZE", 3)
    smaller_sets = make_importance_table(pd.DataFrame({"score": scores}), "score")
    assert smaller_sets["std_error"].tolist() == pytest.approx([expected] * 2, rel=0.1)


def test_spread_shrinks_with_trials_and_exceeds_the_share_of_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(analysis, "N_RESAMPLES", 25)
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

"""Comparing runs whose differences are known, and runs that differ by noise alone."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator.disk.rows.usage import compute_usage
from orchestrator.tables import cost_comparison
from orchestrator.tables.compared_values import ComparedValues
from orchestrator.tables.cost_comparison import classify_cost_difference, summarize_blocks
from orchestrator.tables.query import Rows
from orchestrator.tables.run_comparison import Side, classify_metric_difference, compare

MIB = 2.0**20


def noise(seed: int, length: int, kept: float = 0.8) -> np.ndarray[Any, Any]:
    """Noise of unit variance that remembers: each value keeps a part of the one before it."""
    fresh = np.random.default_rng(seed).normal(size=length) * np.sqrt(1 - kept**2)
    values = np.empty(length)
    values[0] = fresh[0] / np.sqrt(1 - kept**2)
    for index in range(1, length):
        values[index] = kept * values[index - 1] + fresh[index]
    return values


def side(
    name: str,
    seed: int,
    step_s: float = 0.1,
    *,
    length: int = 500,
    ranks: int = 2,
    batch_size: int = 32,
    rss: float = 100 * MIB,
    accuracy: float = 0.8,
    **config: Any,
) -> Side:
    """A run whose steps take `step_s` give or take 5 %, and whose accuracy settles, give or take
    0.01."""
    rows = pd.concat(
        pd.DataFrame(
            {
                "rank": rank,
                "phase": "train",
                "epoch": 0,
                "iteration": np.arange(1, length + 1),
                "batch_size": batch_size,
                "step_s": step_s * (1 + 0.05 * noise(100 * seed + rank, length)),
                "data_wait_s": 0.01 * (1 + 0.05 * noise(100 * seed + 50 + rank, length)),
                "rss_bytes": rss + MIB * rank,
            }
        )
        for rank in range(ranks)
    )
    curve = accuracy + 0.01 * noise(100 * seed + 99, 20, kept=0.0) - 0.5 * np.exp(-np.arange(20))
    return Side(
        name,
        config,
        [
            {"epoch": n, "val/accuracy": value, "val/loss": 1 - value, "val/iteration_s": 0.1}
            for n, value in enumerate(curve)
        ],
        Rows.wrap(rows),
    )


def test_real_differences_are_found_with_their_direction() -> None:
    found = compare([side("a", 1), side("b", 2, 0.12, rss=150 * MIB, accuracy=0.9)])
    costs = found.costs
    metrics = found.metrics
    assert costs["step_s"].findings == [None, "more"]
    assert costs["train_s"].findings == [None, "more"]
    assert costs["samples_per_s"].findings == [None, "less"]
    assert costs["data_wait_s"].findings == [None, "noise"]
    assert costs["peak_rss_bytes"] == ComparedValues([101 * MIB, 151 * MIB], [None, "more"])
    assert (
        metrics["val/accuracy last"].findings
        == metrics["val/accuracy best"].findings
        == [None, "more"]
    )
    assert metrics["val/loss last"].findings == [None, "less"]
    assert "val/iteration_s best" not in metrics


def test_compared_numbers_match_a_hand_calculation() -> None:
    """Two ranks, of which the slower one counts: 30 iterations of 2 s and 20 of 4 s. The last 25
    have a wait."""
    rows = pd.DataFrame(
        {
            "rank": [0, 1] * 50,
            "phase": "train",
            "epoch": 0,
            "iteration": np.repeat(np.arange(50), 2),
            "batch_size": 64,
            "step_s": [1.0, 2.0] * 30 + [1.0, 4.0] * 20,
            "data_wait_s": [np.nan] * 50 + [0.1, 0.3] * 25,
        }
    )
    reports = [{"val/loss": 0.5}, {"val/loss": 0.25}, {"val/loss": 0.75}]
    found = compare(
        [Side("a", {}, reports, Rows.wrap(rows)), Side("b", {}, [], Rows.wrap(rows[:0]))]
    )
    assert found.ranks == [2, 0]
    assert {name: entry.values for name, entry in found.costs.items()} == {
        "step_s": [2.0, None],
        "data_wait_s": [0.3, None],
        "samples_per_s": [100 * 64 / 140, None],
        "train_s": [140.0, None],
    }
    assert {name: entry.values for name, entry in found.metrics.items()} == {
        "val/loss best": [0.25, None],
        "val/loss last": [0.75, None],
    }
    assert found.metrics["val/loss last"].findings == [None, "unknown"]


def test_throughput_and_training_time_of_equally_many_samples_have_the_same_verdict() -> None:
    """One run always takes 40 ms. The other takes 4 ms, but a second in three iterations, as at the
    start of an epoch: 4 s or 3.388 s, of which the second is mostly three iterations."""
    rows = pd.DataFrame(
        {
            "rank": 0,
            "phase": "train",
            "epoch": 0,
            "iteration": np.arange(1, 101),
            "batch_size": 32,
            "step_s": 0.04,
        }
    )
    others = rows.assign(step_s=np.where(rows["iteration"].isin([1, 36, 71]), 1.0, 0.004))
    found = compare([Side("a", {}, [], Rows.wrap(rows)), Side("b", {}, [], Rows.wrap(others))])
    assert found.costs["train_s"].values == pytest.approx([4.0, 3.388])
    assert found.costs["samples_per_s"].values == pytest.approx([3200 / 4.0, 3200 / 3.388])
    assert found.costs["step_s"].findings == [None, "less"]
    assert found.costs["train_s"].findings == [None, "noise"]
    assert found.costs["samples_per_s"].findings == [None, "noise"]


def test_runs_without_samples_have_no_throughputs_to_tell_apart() -> None:
    """A custom loop may record rows of 0 samples."""
    sides = [side("a", 1, batch_size=0), side("b", 2, batch_size=0)]
    assert compare(sides).costs["samples_per_s"] == ComparedValues([0.0, 0.0], [None, "unknown"])


def test_training_time_is_that_of_the_slowest_rank() -> None:
    """Each rank is slow in every other iteration: 75 s each, though some rank takes 2 s in each of
    50 iterations."""
    rows = pd.DataFrame(
        {
            "rank": [0, 1] * 50,
            "phase": "train",
            "epoch": 0,
            "iteration": np.repeat(np.arange(50), 2),
        }
    )
    rows["step_s"] = np.where((rows["rank"] + rows["iteration"]) % 2, 1.0, 2.0)
    found = compare([Side("a", {}, [], Rows.wrap(rows))])
    assert (
        found.costs["train_s"].values
        == [75.0]
        == [compute_usage(Rows.wrap(rows).source)["train_s"]]
    )


def test_every_third_thousand_of_a_long_run_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_comparison, "MAX_ITERATIONS", 2000)
    rows = pd.DataFrame(
        {"rank": [0, 1] * 6000, "phase": "train", "epoch": 0, "iteration": np.arange(12000) // 2}
    )
    rows["step_s"] = np.where(rows["iteration"] // 1000 % 3 == 0, 1.0, 9.0)
    assert compare([Side("a", {}, [], Rows.wrap(rows))]).costs["step_s"].values == [1.0]


def test_mode_comes_from_the_runs_or_the_name_of_the_metric() -> None:
    reports = [{"val/ppl": 9.0, "val/score": 0.5}, {"val/ppl": 7.0, "val/score": 0.25}]
    rows = pd.DataFrame({"rank": [], "iteration": []})
    found = compare(
        [Side("a", {}, reports, Rows.wrap(rows)), Side("b", {}, reports, Rows.wrap(rows))]
    )
    assert found.metrics["val/ppl best"].values == [7.0, 7.0]
    assert "val/score best" not in found.metrics
    assert found.not_known == ["val/score"]
    said = compare(
        [
            Side("a", {}, reports, Rows.wrap(rows), {"val/score": "max"}),
            Side("b", {}, reports, Rows.wrap(rows)),
        ]
    )
    assert said.metrics["val/score best"].values == [0.5, 0.5]
    assert said.not_known == []
    against = compare(
        [
            Side("a", {}, reports, Rows.wrap(rows), {"val/score": "max"}),
            Side("b", {}, reports, Rows.wrap(rows), {"val/score": "min"}),
        ]
    )
    assert against.not_known == ["val/score"]


@pytest.mark.parametrize("kept", [0.0, 0.8, 0.9])
def test_noise_is_rarely_reported_as_a_difference(kept: float) -> None:
    """200 pairs of runs of 1,000 iterations that are alike, whose noise remembers 1, 9 or 19
    iterations: one alarm in a hundred is allowed, and more than six in 200 would come about less
        than once in a hundred times."""
    pairs = [
        (summarize_blocks(noise(2 * n, 1000, kept)), summarize_blocks(noise(2 * n + 1, 1000, kept)))
        for n in range(200)
    ]
    alarms = sum(classify_cost_difference(1.0, first, other) != "noise" for first, other in pairs)
    assert alarms <= 6


def test_a_difference_of_half_the_noise_is_found() -> None:
    """Of 100 pairs, at least nine in ten."""
    pairs = [
        (
            summarize_blocks(noise(2 * n, 1000, 0.0)),
            summarize_blocks(noise(2 * n + 1, 1000, 0.0) + 0.5),
        )
        for n in range(100)
    ]
    assert (
        sum(classify_cost_difference(0.5, first, other) == "more" for first, other in pairs) >= 90
    )


def test_fluctuating_metrics_rarely_differ() -> None:
    """400 pairs of ten reports around one value: the last reports are told apart in at most two of
    a hundred."""
    curves = np.random.default_rng(0).normal(size=(400, 2, 10))
    alarms = sum(
        classify_metric_difference(other[-1] - first[-1], first, other) != "noise"
        for first, other in curves
    )
    assert alarms <= 8
    assert classify_metric_difference(20.0, *curves[0]) == "more"

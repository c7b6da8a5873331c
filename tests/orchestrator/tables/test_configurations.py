"""What repeats reach together, against sums on paper."""

import math

import pytest

from orchestrator.tables.configurations import (
    RankedTrial,
    find_better_with_fewer_trials,
    rank_configurations,
)


def repeats(number: int, *values: float | None, status: str = "finished") -> list[RankedTrial]:
    return [
        RankedTrial(number, f"trial-{10 * number + place:04d}", status, value)
        for place, value in enumerate(values)
    ]


def test_mean_std_and_interval_match_a_hand_calculation() -> None:
    (one,) = rank_configurations(repeats(0, 1.0, 2.0, 3.0, 4.0), "max")
    assert (one.n, one.mean, one.std) == (4, 2.5, pytest.approx(math.sqrt(5 / 3)))
    assert (one.low, one.high) == pytest.approx(
        (2.5 - 3.1824463 * math.sqrt(5 / 12), 2.5 + 3.1824463 * math.sqrt(5 / 12))
    )
    assert one.trials[0] == "trial-0003"
    (diverged,) = rank_configurations(repeats(0, 1.0, math.inf), "min", "lower_bound")
    assert (diverged.mean, diverged.score, diverged.trials[0]) == (math.inf, math.inf, "trial-0000")
    assert math.isnan(diverged.std)
    assert one.describe("val/accuracy") == "2.5 ± 2.054 (mean of 4 trials)"


def test_best_configuration_has_most_ended_trials_then_best_mean() -> None:
    held = repeats(0, 0.5, 0.7)
    better = repeats(1, 0.1, 1.2)
    lucky = [*repeats(2, 0.9), RankedTrial(2, "trial-0021", "failed", 0.95)]
    nothing = repeats(3, None, None, status="failed")
    for mode, order in (("max", [1, 0, 2, 3]), ("min", [0, 1, 2, 3])):
        found = rank_configurations([*nothing, *lucky, *held, *better], mode)
        assert [one.number for one in found] == order
    found = rank_configurations([*lucky, *held], "max")
    ahead = find_better_with_fewer_trials(found, "max")
    assert ahead is not None
    assert (found[0].number, ahead.describe("val/accuracy")) == (
        0,
        "0.9 (mean of 1 trial), 1 failed",
    )
    assert find_better_with_fewer_trials(found, "min") is None


def test_lower_bound_penalizes_spread_between_trials() -> None:
    """1.2 and 0.2 have the mean 0.7 and the standard error 0.5; 0.6 and 0.7 have 0.65 and 0.05."""
    wide = repeats(0, 1.2, 0.2)
    narrow_counters = repeats(1, 0.6, 0.7)
    for mode, bounds in (("max", {1: 0.6, 0: 0.2}), ("min", {1: 0.7, 0: 1.2})):
        found = rank_configurations([*wide, *narrow_counters], mode, "lower_bound")
        assert [(one.number, one.score) for one in found] == [
            (number, pytest.approx(bound)) for number, bound in bounds.items()
        ]
        assert [one.mean for one in found] == pytest.approx([0.65, 0.7])
    assert [one.number for one in rank_configurations([*wide, *narrow_counters], "max")] == [0, 1]
    alone = repeats(2, 0.5, status="running")
    held = [*repeats(3, 0.1, 0.9), RankedTrial(3, "trial-0032", "failed", None)]
    first, other = rank_configurations([*alone, *held], "max", "lower_bound")
    assert (first.score, other.score) == (pytest.approx(0.1), 0.5), (
        "a single trial is a configuration of its own, and has not ended"
    )
    ahead = find_better_with_fewer_trials(
        rank_configurations([*wide, *repeats(1, 0.6)], "max", "lower_bound"), "max"
    )
    assert [ahead and ahead.number] == [1], (
        "0.6 alone is better than the bound, and no better than the mean"
    )


def test_running_trials_count_with_their_best_so_far() -> None:
    (one,) = rank_configurations(repeats(0, 0.25, 0.75, None, status="running"), "max")
    assert (one.n, one.mean, one.trials) == (0, 0.5, ("trial-0001", "trial-0000"))
    assert "so far" in one.describe("val/loss")
    (stopped,) = rank_configurations([*repeats(0, 0.5), *repeats(0, 0.1, status="stopped")], "max")
    assert (stopped.n, stopped.stopped, stopped.mean) == (2, 1, 0.3)

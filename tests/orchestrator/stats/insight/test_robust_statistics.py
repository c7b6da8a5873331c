from __future__ import annotations

import numpy as np
import pytest

from orchestrator.stats.insight.robust_statistics import (
    beyond_others,
    block_medians,
    lower_spread,
    median_error,
    period_of,
    significant_errors,
    step_error,
    theil_sen,
    without_spikes,
)


@pytest.mark.parametrize("columns", [2, 3, 4, 7, 8])
def test_the_median_of_the_others_leaves_each_column_out_in_turn(columns: int) -> None:
    values = np.random.default_rng(0).integers(0, 5, (30, columns)).astype(float)
    others = [np.median(np.delete(values, column, axis=1), axis=1) for column in range(columns)]
    assert beyond_others(values).tolist() == (values - np.array(others).T).tolist()


def test_blocks_cover_everything_in_order() -> None:
    assert block_medians(np.arange(12.0), most=3).tolist() == [1.5, 5.5, 9.5]
    assert len(block_medians(np.arange(1000.0))) == 20
    assert block_medians(np.arange(3.0)).tolist() == [1.0]


def test_the_error_of_a_median_is_that_of_repeated_draws() -> None:
    """For 16 blocks that are normal with standard deviation 2 the median's error is 2 sqrt(pi / 2) / 4 = 0.63."""
    draw = np.random.default_rng(0)
    blocks = draw.normal(0, 2, (16, 4000))
    assert np.median(median_error(blocks)) == pytest.approx(0.63, rel=0.1)
    assert np.median(blocks, axis=0).std() == pytest.approx(0.63, rel=0.1)
    assert np.median(step_error(blocks + np.arange(16)[:, None] * 0.1)) == pytest.approx(2, rel=0.1)


def test_the_spread_of_ranks_takes_no_notice_of_those_that_stand_out_above() -> None:
    alike = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert lower_spread(np.array(alike)) == pytest.approx(1.4826, rel=1e-4)
    assert lower_spread(np.array([*alike[:3], 90.0, 95.0])) == pytest.approx(1.4826, rel=1e-4)


def test_more_tests_ask_for_more() -> None:
    assert significant_errors(1000, 20) > significant_errors(1, 20) > 3
    assert significant_errors(1, 5) > significant_errors(1, 20)


def test_a_slope_is_not_moved_by_wild_values_and_has_bounds() -> None:
    """As scipy.stats.theilslopes(y, x) gives it for these values."""
    x = np.arange(10.0)
    y = np.array([0.3, 1.8, 4.4, 5.7, 8.5, 99.0, 11.8, 14.5, 15.7, 18.2])
    slope = theil_sen(x[None], y[None])
    scipy = pytest.importorskip("scipy.stats").theilslopes(y, x)
    assert slope.per_step[0] == pytest.approx(scipy.slope)
    assert slope.low[0] == pytest.approx(scipy.low_slope, abs=0.1)
    assert slope.high[0] == pytest.approx(scipy.high_slope, abs=0.1)
    assert slope.low[0] < 2 < slope.high[0]


def test_spikes_go_and_what_stays_stays() -> None:
    values = np.array([1.0, 1.1, 0.9, 1.0, 1.2, 1.0, 1.1, 0.9, 3.0, 3.1, 2.9, 3.0, 3.2, 2.9])
    spiked = values.copy()
    spiked[2:4] = 50.0
    assert without_spikes(values[None])[0].tolist() == values.tolist()
    kept = without_spikes(spiked[None])[0]
    assert kept[[0, 1, *range(4, 14)]].tolist() == values[[0, 1, *range(4, 14)]].tolist()
    assert kept[2:4].max() < 1.3


def test_a_period_is_found_among_other_hits() -> None:
    hits = np.zeros(300, dtype=bool)
    hits[7::20] = True
    hits[[3, 50, 51, 200]] = True
    period = period_of(hits, np.arange(300), tests=100)
    assert period is not None
    assert (period.length, period.phase, period.times) == (20, 7, 15)


@pytest.mark.parametrize("seed", range(20))
def test_hits_by_chance_have_no_period(seed: int) -> None:
    assert period_of(np.random.default_rng(seed).random(400) < 0.05, np.arange(400), tests=10) is None


def test_four_hits_are_too_few() -> None:
    hits = np.zeros(100, dtype=bool)
    hits[::25] = True
    assert period_of(hits, np.arange(100), tests=1) is None

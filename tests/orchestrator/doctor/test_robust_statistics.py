import numpy as np
import pytest

from orchestrator.doctor.robust_statistics import (
    compute_quarter_medians,
    compute_significance_threshold,
    estimate_block_spread,
    estimate_deviation,
    estimate_lower_spread,
    estimate_median_error,
    estimate_quarter_change_error,
    subtract_median_of_others,
)


@pytest.mark.parametrize("columns", [2, 3, 4, 7, 8])
def test_beyond_others_subtracts_the_median_of_other_columns(columns: int) -> None:
    values = np.random.default_rng(0).integers(0, 5, (30, columns)).astype(float)
    others = [np.median(np.delete(values, column, axis=1), axis=1) for column in range(columns)]
    assert subtract_median_of_others(values).tolist() == (values - np.array(others).T).tolist()


def test_the_error_of_a_median_is_that_of_repeated_draws() -> None:
    """For 16 blocks that are normal with standard deviation 2 the median's error is 2 sqrt(pi / 2)
    / 4 = 0.63."""
    draw = np.random.default_rng(0)
    blocks = draw.normal(0, 2, (16, 4000))
    assert np.median(estimate_median_error(blocks)) == pytest.approx(0.63, rel=0.1)
    assert np.median(blocks, axis=0).std() == pytest.approx(0.63, rel=0.1)
    assert np.median(estimate_block_spread(blocks + np.arange(16)[:, None] * 0.1)) == pytest.approx(
        2, rel=0.1
    )


def test_the_error_of_a_change_is_that_of_repeated_draws() -> None:
    """Blocks with standard deviation 2 around a trend. The factor of a median holds for many blocks,
    and is somewhat too large for the five of a quarter."""
    draw = np.random.default_rng(0)
    blocks = draw.normal(0, 2, (20, 4000)) + np.arange(20)[:, None] * 0.1
    first, last = compute_quarter_medians(blocks)
    assert np.median(last - first) == pytest.approx(1.5, rel=0.1)
    actual = (last - first).std()
    assert actual <= np.median(estimate_quarter_change_error(blocks)) <= 1.2 * actual


def test_outliers_do_not_change_a_deviation() -> None:
    values = np.random.default_rng(0).normal(1.0, 2.0, (10_000, 2))
    values[:100] = 1e6
    assert estimate_deviation(values) == pytest.approx([2, 2], rel=0.05)


@pytest.mark.parametrize("blocks", [4, 5, 7, 10, 20])
def test_threshold_gives_a_false_alarm_in_a_thousand(blocks: int) -> None:
    medians = np.random.default_rng(0).normal(size=(blocks, 100_000))
    thresholds = compute_significance_threshold(1, blocks) * estimate_median_error(medians)
    assert 0.0003 < np.mean(np.median(medians, axis=0) > thresholds) < 0.003


def test_lower_spread_ignores_high_outliers() -> None:
    alike = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert estimate_lower_spread(np.array(alike)) == pytest.approx(1.4826, rel=1e-4)
    assert estimate_lower_spread(np.array([*alike[:3], 90.0, 95.0])) == pytest.approx(
        1.4826, rel=1e-4
    )

from itertools import product

import numpy as np
import pytest

from hooks.model.power_average import (
    LARGEST_STD,
    compute_exponent,
    compute_update_coefficient,
    find_combination,
)


def test_exponent_of_a_std_is_that_of_the_paper() -> None:
    """Karras et al. (2024), section 3.1: 5% and 10% are 16.97 and 6.94."""
    assert [round(compute_exponent(std), 2) for std in (0.05, 0.10)] == [16.97, 6.94]
    for std in (0.01, 0.07, 0.2, LARGEST_STD):
        g = compute_exponent(std)
        assert (g + 1) ** 0.5 * (g + 2) ** -1 * (g + 3) ** -0.5 == pytest.approx(std)
        x = (np.arange(100_000) + 0.5) / 100_000
        weights = x**g / (x**g).sum()
        assert np.sqrt((weights * (x - (weights * x).sum()) ** 2).sum()) == pytest.approx(
            std, rel=1e-6
        )
    assert compute_exponent(LARGEST_STD) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("steps", [range(1, 13), [3, 6, 9, 10, 20]])
def test_updates_give_each_step_its_share_of_the_profile(steps: list[int]) -> None:
    g = compute_exponent(0.1)
    left = np.zeros(len(steps))
    before = 0
    for place, step in enumerate(steps):
        taken = compute_update_coefficient(before, step, 0.1)
        left = left * (1 - taken)
        before = step
        left[place] += taken
    edges = np.array([0, *steps]) / steps[-1]
    np.testing.assert_allclose(left, np.diff(edges ** (g + 1)), rtol=1e-12)


@pytest.mark.parametrize("std", [0.04, 0.07, 0.2])
def test_combination_is_the_least_squares_solution(std: float) -> None:
    """The profiles as columns, at 200,000 places, as one dense problem."""
    stored = list(product((30, 70, 100), (0.05, 0.1)))
    wanted = (100, std)
    places = (np.arange(200_000) + 0.5) / 2_000
    columns = []
    for t, one in [*stored, wanted]:
        g = compute_exponent(one)
        columns.append(np.where(places < t, (g + 1) * (places / t) ** g / t, 0))
    *basis, target = columns
    expected = np.linalg.lstsq(np.stack(basis, 1), target, rcond=None)[0]
    factors, error = find_combination(stored, wanted)
    np.testing.assert_allclose(factors, expected, rtol=2e-4, atol=1e-5)
    assert error == pytest.approx(
        np.linalg.norm(expected @ np.stack(basis) - target) / np.linalg.norm(target), rel=1e-3
    )

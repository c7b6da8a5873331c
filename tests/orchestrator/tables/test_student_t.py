"""Student's t distribution, against printed tables and closed forms."""

import math

import pytest

from orchestrator.tables.student_t import compute_quantile, compute_tail_probability


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (10, 2.228),
        (29, 2.045),
        (120, 1.980),
    ],
)
def test_quantiles_match_printed_tables(freedom: int, expected: float) -> None:
    assert compute_quantile(0.975, freedom) == pytest.approx(expected, abs=5e-4)
    assert compute_tail_probability(compute_quantile(0.975, freedom), freedom) == pytest.approx(
        0.025, rel=1e-9
    )


@pytest.mark.parametrize("t", [-40.0, -1.0, 0.0, 0.3, 2.5, 1e6, math.inf])
def test_tails_match_closed_forms(t: float) -> None:
    assert compute_tail_probability(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, abs=1e-12)
    assert compute_tail_probability(t, 2) == pytest.approx(
        0.0 if math.isinf(t) else 0.5 - t / (2 * math.sqrt(2 + t * t)), abs=1e-12
    )

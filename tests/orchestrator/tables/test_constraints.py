"""Constraints of a sweep, on values whose comparison is known by hand."""

import math
from typing import Any

import pytest

from orchestrator.experiment.fields.comparison import Comparison
from orchestrator.tables.constraints import Constraints

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "value", "excess"),
    [
        ("<= 0.5", 0.5, 0.0),
        ("<= 0.5", 0.75, 0.25),
        (">= 0.5", 0.25, 0.25),
        (">=-1e-3", 0.0, -0.001),
        ("<= 8 GiB", 9 * GIB, GIB),
        ("<= 1.5 MB", 1_500_000, 0.0),
        ("<= 2h", 7200.0, 0.0),
        ("<= 1m30s", 100, 10.0),
        ("<= 0.5", math.nan, math.inf),
        (">= 0.5", None, math.inf),
        ("<= 0.5", math.inf, math.inf),
    ],
)
def test_excess_is_the_distance_beyond_the_limit(text: str, value: Any, excess: float) -> None:
    comparison = Comparison.parse(text)
    assert comparison.measure_excess(value) == pytest.approx(excess)
    assert comparison.holds(value) is (excess <= 0)


@pytest.mark.parametrize(
    "text",
    [
        *("0.5", "< 0.5", "<=", "<= low", "<= nan", ">= inf", "<= 1 2"),
        *("<= 0,5", "<= 1,000", "<= 0.5 %", "<= 1.5.3", "<= 8 GiB/s", "<= 1e-3 GiB"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Comparison.parse(text)


def test_metric_without_a_unit_takes_a_limit_with_one() -> None:
    assert Comparison.parse_for("val/delay", "<= 2m").limit == 120


def test_each_broken_limit_is_named_with_its_value() -> None:
    constraints = Constraints(
        {"val/loss": "<= 0.5", "process_peak_rss_bytes": "<= 8 GiB", "total_s": "<= 2h"}
    )
    cells = {"val/loss": 0.75, "process_peak_rss_bytes": 9 * GIB, "total_s": 60.0}
    assert constraints.describe_broken(cells) == (
        "val/loss is 0.75, not <= 0.5; process_peak_rss_bytes is 9 GiB, not <= 8 GiB"
    )
    assert (
        constraints.describe_broken({**cells, "val/loss": 0.1, "process_peak_rss_bytes": 1}) is None
    )
    assert constraints.describe_broken({**cells, "val/loss": 0.50001}) == (
        "val/loss is 0.50001, not <= 0.5; process_peak_rss_bytes is 9 GiB, not <= 8 GiB"
    )
    assert "total_s is unknown" in (constraints.describe_broken({}) or "")

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.report import axes


def test_ticks_are_round_numbers_of_the_unit() -> None:
    assert axes.axis("step_s", [0.0, 0.023]).ticks == tuple(
        (pytest.approx(value), f"{value * 1000:.0f} ms") for value in (0, 0.005, 0.01, 0.015, 0.02)
    )
    assert [text for _, text in axes.axis("rss_bytes", [2**30, 2**31]).ticks] == [
        "1.0 GiB",
        "1.2 GiB",
        "1.4 GiB",
        "1.6 GiB",
        "1.8 GiB",
        "2.0 GiB",
    ]
    assert [text for _, text in axes.axis("accuracy", [0.5, 1]).ticks] == ["0.5", "0.6", "0.7", "0.8", "0.9", "1.0"]


def test_places_are_shares_of_the_stretch() -> None:
    assert axes.axis("loss", [2, 4]).positions([2, 3, 4]).tolist() == [0, 0.5, 1]
    assert axes.axis("loss", [3, 4], from_zero=True).positions([2]).tolist() == [0.5]


def test_what_spreads_over_magnitudes_is_logarithmic() -> None:
    wide = axes.axis("loss", [0.001, 1])
    assert wide.logarithmic
    assert wide.positions([0.001, 0.01, 0.1, 1]).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert [text for _, text in wide.ticks] == ["0.001", "0.01", "0.1", "1"]
    assert np.isnan(wide.positions([0, -1])).all()
    assert not axes.axis("loss", [0.0, 1]).logarithmic
    assert not axes.axis("rss_bytes", [1, 2**30]).logarithmic


def test_a_logarithmic_axis_of_few_magnitudes_has_ticks_in_between() -> None:
    assert [value for value, _ in axes.axis("lr", [0.01, 0.3], logarithmic=True).ticks] == pytest.approx(
        [0.01, 0.02, 0.05, 0.1, 0.2]
    )


def test_values_that_are_not_finite_have_no_place_and_no_say() -> None:
    found = axes.axis("loss", [1, float("inf"), float("nan"), 3])
    assert (found.low, found.high) == (1, 3)
    assert np.isnan(found.positions([float("inf"), float("nan")])).all()


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=5))
def test_any_values_have_an_axis(values: list[float]) -> None:
    found = axes.axis("loss", values)
    assert found.low < found.high
    assert all(-1e-6 <= place <= 1 + 1e-6 for place in found.positions([value for value, _ in found.ticks]))


def test_steps_are_labelled_with_whole_numbers() -> None:
    assert all(float(value).is_integer() for value, _ in axes.integer_axis("step", [1, 3]).ticks)
    assert axes.integer_axis("step", [5]).ticks


def test_things_have_a_place_each_and_few_labels() -> None:
    found = axes.category_axis(["a", "b", "c", "d"], most=2)
    assert found.positions([0, 1, 2, 3]).tolist() == [0.125, 0.375, 0.625, 0.875]
    assert found.ticks == ((0.0, "a"), (2.0, "c"))

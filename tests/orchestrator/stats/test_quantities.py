from __future__ import annotations

import pytest

from orchestrator.stats import quantities


@pytest.mark.parametrize(
    ("value", "told"), [(0.0, "0 ms"), (0.0123, "12.3 ms"), (0.99, "990 ms"), (1.0, "1 s"), (1.5, "1.5 s"), (-0.25, "-250 ms")]
)
def test_short_times_are_in_milliseconds(value: float, told: str) -> None:
    assert quantities.seconds(value) == told


@pytest.mark.parametrize(
    ("value", "told"), [(2**19, "0.5 MiB"), (12.3 * 2**20, "12.3 MiB"), (2**30, "1 GiB"), (1.5 * 2**30, "1.5 GiB"), (-(2**20), "-1 MiB")]
)
def test_sizes_are_in_mebibytes_up_to_a_gibibyte(value: float, told: str) -> None:
    assert quantities.size(value) == told


@pytest.mark.parametrize(
    ("value", "told"), [(0.4, "0 s"), (89.4, "89 s"), (90, "2 min"), (150, "2 min"), (89.4 * 60, "89 min"), (90 * 60, "1 h 30 min"), (125 * 60, "2 h 05 min")]
)
def test_what_people_wait_for_is_in_seconds_minutes_or_hours(value: float, told: str) -> None:
    assert quantities.duration(value) == told

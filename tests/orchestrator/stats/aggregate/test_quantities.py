from __future__ import annotations

from typing import Any

import pytest

from orchestrator.stats.aggregate import quantities


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0 ms"), (0.0123, "12.3 ms"), (0.99, "990 ms"), (1.0, "1 s"), (1.5, "1.5 s"), (-0.25, "-250 ms")],
)
def test_short_times_are_in_milliseconds(value: float, told: str) -> None:
    assert quantities.seconds(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (2**19, "0.5 MiB"),
        (12.3 * 2**20, "12.3 MiB"),
        (1010 * 2**20, "0.986 GiB"),
        (2**30, "1 GiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (-(2**20), "-1 MiB"),
    ],
)
def test_sizes_are_in_mebibytes_up_to_a_gibibyte(value: float, told: str) -> None:
    assert quantities.size(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.4, "0 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (150, "2 min"),
        (89.4 * 60, "89 min"),
        (90 * 60, "1 h 30 min"),
        (125 * 60, "2 h 05 min"),
    ],
)
def test_what_people_wait_for_is_in_seconds_minutes_or_hours(value: float, told: str) -> None:
    assert quantities.duration(value) == told


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("step_s", 0.01234567, "12.3 ms"),
        ("stats/step_s/p95", 2.5, "2.5 s"),
        ("total_s", 3599.6, "1 h 00 min"),
        ("total_s", 61, "1 min 01 s"),
        ("rss_bytes", 3 * 2**29, "1.5 GiB"),
        ("samples_per_s", 9301.8, "9302/s"),
        ("gpu_utilization_percent", 42, "42 %"),
        ("gpu_power_w", 71.25, "71.25 W"),
        ("data_wait_share", 0.125, "12.5%"),
        ("val/accuracy", 0.979848, "0.9798"),
        ("iteration", 12345, "12,345"),
        ("parameters", 125_000_000, "125M"),
        ("loss", float("inf"), "∞"),
        ("loss", float("nan"), ""),
        ("loss", None, ""),
        ("on", True, "True"),
        ("node", "a<b", "a<b"),
    ],
)
def test_values_have_the_unit_of_their_name(name: str, value: Any, words: str) -> None:
    assert quantities.text(name, value) == words

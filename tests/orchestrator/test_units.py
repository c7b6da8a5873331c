import math
from typing import Any

import pytest

from orchestrator import units
from orchestrator.experiment.yaml.reader import parse_value
from orchestrator.units import format_parameter


@pytest.mark.parametrize(
    ("format_number", "value", "expected"),
    [
        (units.format_seconds, 0.0123, "12.3 ms"),
        (units.format_seconds, 0.99, "990 ms"),
        (units.format_seconds, 0.9996, "1 s"),
        (units.format_seconds, -0.25, "-250 ms"),
        (units.format_seconds, 59.94, "59.9 s"),
        (units.format_seconds, 59.96, "1 min 00 s"),
        (units.format_seconds, math.inf, "inf s"),
        (units.format_seconds, math.nan, "nan s"),
        (units.format_bytes, 0, "0 B"),
        (units.format_bytes, 100, "100 B"),
        (units.format_bytes, 999.6, "0.976 KiB"),
        (units.format_bytes, 2**19, "512 KiB"),
        (units.format_bytes, 999.9 * 2**10, "0.976 MiB"),
        (units.format_bytes, 999.9 * 2**20, "0.976 GiB"),
        (units.format_bytes, 1.5 * 2**30, "1.5 GiB"),
        (units.format_bytes, -(2**20), "-1 MiB"),
        (units.format_bytes, 3 * 2**40, "3,072 GiB"),
        (units.format_seconds, 90.4, "1 min 30 s"),
        (units.format_seconds, 3599.6, "1 h 00 min"),
        (units.format_seconds, -75, "-1 min 15 s"),
        (units.format_rough_duration, 89.4, "89 s"),
        (units.format_rough_duration, 90, "2 min"),
        (units.format_rough_duration, 89.4 * 60, "89 min"),
        (units.format_rough_duration, 90 * 60, "1 h 30 min"),
        (units.format_rough_duration, 125 * 60, "2 h 05 min"),
    ],
)
def test_numbers_have_a_unit_that_suits_their_size(
    format_number: Any, value: float, expected: str
) -> None:
    assert format_number(value) == expected


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("step_s", 0.01234567, "12.3 ms"),
        ("stats/step_s/p95", 2.5, "2.5 s"),
        ("total_s", 3599.6, "1 h 00 min"),
        ("total_s", 4179, "1 h 10 min"),
        ("total_s", 61, "1 min 01 s"),
        ("val/delay_s", -75, "-1 min 15 s"),
        ("rss_bytes", 3 * 2**29, "1.5 GiB"),
        ("samples_per_s", 9301.8, "9302/s"),
        ("gpu_utilization_percent", 42, "42 %"),
        ("gpu_power_w", 71.25, "71.25 W"),
        ("data_wait_share", 0.125, "12.5%"),
        ("val/accuracy", 0.979848, "0.9798"),
        ("iteration", 12345, "12,345"),
        ("parameters", 125_000_000, "125M"),
        ("loss", 9999.6, "10k"),
        ("loss", 999_960.5, "1M"),
        ("loss", float("inf"), "∞"),
        ("loss", float("nan"), ""),
        ("loss", None, ""),
        ("on", True, "True"),
        ("node", "a<b", "a<b"),
    ],
)
def test_values_have_the_unit_of_their_name(name: str, value: Any, words: str) -> None:
    assert units.format_value(name, value) == words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1000, "1000"),
        (123456789, "123456789"),
        (64.0, "64"),
        (0.0125, "0.0125"),
        (1e-7, "1e-07"),
        (True, "true"),
        (None, "null"),
        ("adam", "adam"),
        (123456.5, "1.235e+05"),
    ],
)
def test_parameters_can_be_pasted_into_an_experiment_file(value: object, text: str) -> None:
    assert format_parameter(value) == text
    if not isinstance(value, float) or float(text) == value:
        assert parse_value(text, "e.yaml")[0] == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (8.0, "8"),
        (1e-7, "1e-07"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1234567890123, "1234567890123"),
        (2**53 + 1, "9007199254740993"),
        (float("inf"), "inf"),
    ],
)
def test_different_numbers_have_different_texts(value: float, text: str) -> None:
    assert units.format_in_full(value) == text

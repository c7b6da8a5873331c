from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.report import units


@pytest.mark.parametrize(
    ("name", "value", "told"),
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
def test_values_are_told_in_their_unit(name: str, value: Any, told: str) -> None:
    assert units.text(name, value) == told


def test_exact_values_keep_all_digits() -> None:
    assert units.exact("step_s", 0.1 + 0.2) == "0.30000000000000004 s"
    assert units.exact("loss", np.float64(1) / 3) == repr(1 / 3)
    assert units.exact("rank", np.int64(7)) == "7"
    assert [units.exact("x", value) for value in ("text", None, float("nan"), True)] == [None] * 4


def test_an_axis_is_labelled_in_the_unit_of_its_largest_value() -> None:
    assert units.scale("step_s", 0.02) == ("ms", 1e-3)
    assert units.scale("rss_bytes", 5 * 2**20) == ("MiB", 2.0**20)
    assert units.scale("loss", 5) == ("", 1.0)

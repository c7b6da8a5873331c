from __future__ import annotations

import numpy as np

from orchestrator.report import units


def test_exact_values_keep_all_digits() -> None:
    assert units.exact("step_s", 0.1 + 0.2) == "0.30000000000000004 s"
    assert units.exact("loss", np.float64(1) / 3) == repr(1 / 3)
    assert units.exact("rank", np.int64(7)) == "7"
    assert [units.exact("x", value) for value in ("text", None, float("nan"), True)] == [None] * 4


def test_an_axis_is_labelled_in_the_unit_of_its_largest_value() -> None:
    assert units.scale("step_s", 0.02) == ("ms", 1e-3)
    assert units.scale("rss_bytes", 5 * 2**20) == ("MiB", 2.0**20)
    assert units.scale("loss", 5) == ("", 1.0)

from __future__ import annotations

import pandas as pd
import pytest

from orchestrator.report.charts.parallel import parallel
from tests.orchestrator.report.reading import parsed

TRIALS = pd.DataFrame(
    {"lr": [0.01, 0.1, 1.0], "ema": ["null", "{}", "null"], "accuracy": [0.5, 0.75, None]}, index=["a", "b", "c"]
)
MERIT = pd.Series({"a": 0.5, "b": 1.0})


def drawn() -> dict[str, list[tuple[float, float]]]:
    paths = [one for one in parsed(parallel("x", TRIALS, MERIT, {"lr"})).iter("path") if one.get("class") == "through"]
    places = {str(one.get("data-trial")): str(one.get("d")).replace("M", "L").split("L")[1:] for one in paths}
    return {
        trial: [(float(x), float(y)) for x, y in (pair.split(",") for pair in pairs)] for trial, pairs in places.items()
    }


def test_a_trial_goes_through_each_of_its_values() -> None:
    lines = drawn()
    assert [x for x, _ in lines["a"]] == pytest.approx([333, 1000, 1667], abs=1)
    low, middle, high = (lines[trial][0][1] for trial in "abc")
    assert (low, high) == (960, 40)
    # On a logarithmic axis 0.1 is half way from 0.01 to 1.
    assert middle == 500


def test_text_has_places_in_its_order_and_equal_text_the_same() -> None:
    lines = drawn()
    assert lines["a"][1] == lines["c"][1]
    # "null" comes before "{}" and stands below it.
    assert lines["a"][1][1] > lines["b"][1][1]


def test_a_line_ends_where_there_is_no_value_and_the_best_is_drawn_last() -> None:
    assert list(drawn()) == ["c", "a", "b"]
    assert [len(line) for line in drawn().values()] == [2, 3, 3]

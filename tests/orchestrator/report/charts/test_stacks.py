from __future__ import annotations

import pandas as pd
import pytest

from orchestrator.report.charts.stacks import stacks
from tests.orchestrator.report.reading import parsed, tables_of

PARTS = pd.DataFrame({"forward_s": [0.02, 0.01], "backward_s": [0.02, 0.02]}, index=["0", "1"])
KINDS = {"forward_s": 0, "backward_s": 1}


def test_parts_lie_on_each_other_and_are_as_high_as_they_are_long() -> None:
    rects = [
        {name: float(one.get(name, "")) for name in ("y", "height")}
        for one in parsed(stacks("time", PARTS, KINDS, "rank")).iter("rect")
    ]
    # The longest bar, of 40 ms, has the whole height of 1000.
    assert rects == [
        {"y": 500, "height": 500},
        {"y": 0, "height": 500},
        {"y": 750, "height": 250},
        {"y": 250, "height": 500},
    ]


def test_every_part_says_what_it_is_and_the_table_has_the_total() -> None:
    made = stacks("time", PARTS, KINDS, "rank")
    assert [title.text for title in parsed(made).iter("title")][2] == "1: forward_s 10 ms (33.3%)"
    assert tables_of(made)["time"] == [
        ["rank", "forward_s", "backward_s", "total"],
        ["0", "20 ms", "20 ms", "40 ms"],
        ["1", "10 ms", "20 ms", "30 ms"],
    ]


def test_bars_of_trials_can_be_picked() -> None:
    assert [one.get("data-trial") for one in parsed(stacks("x", PARTS, KINDS, "trial", trials=True)).iter("g")] == [
        "0",
        "1",
    ]


@pytest.mark.parametrize("length", [1, 200])
def test_labels_have_room(length: int) -> None:
    parts = pd.DataFrame({"forward_s": [0.01] * 20}, index=["x" * length] * 20)
    labels = [one for one in parsed(stacks("x", parts, KINDS, "rank")).iter("span") if one.get("class") == "x"]
    assert 1 <= len(labels) <= 12

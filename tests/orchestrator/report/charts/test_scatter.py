from __future__ import annotations

import pandas as pd

from orchestrator.report.charts.scatter import scatter
from tests.orchestrator.report.reading import parsed, tables_of

POINTS = pd.DataFrame({"step_s": [0.01, 0.02, 0.03], "accuracy": [0.5, 0.75, 0.5]}, index=["a", "b", "c"])


def test_every_trial_is_a_dot_and_those_of_the_front_are_joined() -> None:
    paths = {
        one.get("data-trial") or one.get("class"): one for one in parsed(scatter("x", POINTS, {"a", "b"})).iter("path")
    }
    assert paths["k1 front"].get("d") == "M0,1000L1000,0"
    assert {trial: (paths[trial].get("d"), paths[trial].get("class")) for trial in "abc"} == {
        "a": ("M0,1000h0", "k1 dot best"),
        "b": ("M1000,0h0", "k1 dot best"),
        "c": ("M2000,1000h0", "k0 dot"),
    }
    title = paths["b"].find("title")
    assert title is not None
    assert title.text == "b: step_s 20 ms, accuracy 0.75"


def test_the_table_says_which_are_on_the_front() -> None:
    assert [row[-1] for row in tables_of(scatter("x", POINTS, {"a", "b"}))["x"][1:]] == ["yes", "yes", ""]

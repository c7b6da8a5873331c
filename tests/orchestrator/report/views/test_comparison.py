from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from orchestrator.report.markup import Markup
from orchestrator.report.views.comparison import coordinates, front, parameter_importance, progress, spending
from orchestrator.sweeps.results.analysis import importance_table
from tests.orchestrator.report.reading import parsed, tables_of

MAX = {"val/accuracy": "max"}
RATES = np.geomspace(0.001, 1, 12)
TRIALS = pd.DataFrame(
    {
        "config/lr": RATES,
        "config/width": [8, 16] * 6,
        "val/accuracy": np.linspace(0.5, 0.9, 12),
        "step_s": np.linspace(0.02, 0.01, 12),
    },
    index=[f"t{place}" for place in range(12)],
)


def test_the_best_trial_s_line_is_the_strongest() -> None:
    paths = [
        one for one in parsed(coordinates(TRIALS, MAX, {"lr"}).content).iter("path") if one.get("class") == "through"
    ]
    merits = {
        str(one.get("data-trial")): float(str(one.get("style")).removeprefix("--merit:").rstrip("%")) for one in paths
    }
    assert max(merits, key=lambda trial: merits[trial]) == "t11"
    assert (merits["t11"], len(merits)) == (100, 12)


def test_what_mattered_is_the_sweep_s_own_importance() -> None:
    table = tables_of(parameter_importance(TRIALS, MAX).content)["Importance for val/accuracy"]
    expected = importance_table(TRIALS, "val/accuracy")
    assert table == [
        ["parameter", "share", "spread"],
        *([name, f"{share:.1%}", f"{spread:.1%}"] for name, share, spread in expected.itertuples()),
    ]
    assert "9 trials have reported val/accuracy; 10 are needed" in str(
        parameter_importance(TRIALS.iloc[:9], MAX).content
    )


def test_the_front_weighs_a_single_metric_against_the_time_of_a_step() -> None:
    trials = TRIALS.assign(step_s=[0.01, 0.02] * 6)
    table = tables_of(front(trials, MAX).content)["val/accuracy against step_s"]
    assert {row[0] for row in table[1:] if row[-1] == "yes"} == {"t10", "t11"}


def test_the_front_of_several_metrics_is_theirs() -> None:
    table = tables_of(front(TRIALS.assign(cost=1.0), {"val/accuracy": "max", "cost": "min"}).content)[
        "cost against val/accuracy"
    ]
    assert [row[0] for row in table[1:] if row[-1] == "yes"] == ["t11"]


def test_every_trial_has_its_curve() -> None:
    reports = {
        "t0": [{"step": 1, "val/accuracy": 0.25}, {"step": 2, "val/accuracy": 0.75}],
        "t1": [{"step": 1, "val/accuracy": 0.5}],
        "t2": [],
    }
    assert [row[0] for row in tables_of(progress(reports, MAX, 3).content)["val/accuracy"][1:]] == [
        "t0",
        "t1",
    ]


def test_the_time_of_the_best_trials() -> None:
    spans = pd.DataFrame({"forward_s": [0.01, 0.02], "all_reduce_wait_s": [0.01, np.nan]}, index=["t1", "t0"])
    assert tables_of(spending(spans).content)["An iteration of each trial"][1:] == [
        ["t1", "10 ms", "10 ms", "20 ms"],
        ["t0", "20 ms", "0 ms", "20 ms"],
    ]


@pytest.mark.parametrize(
    "trials",
    [pd.DataFrame(), TRIALS.iloc[:1], TRIALS[["config/lr"]], TRIALS.assign(**{"val/accuracy": None, "step_s": None})],
)
def test_what_cannot_be_shown_yet_is_said(trials: pd.DataFrame) -> None:
    for section in (
        coordinates(trials, MAX, ()),
        parameter_importance(trials, MAX),
        progress({}, MAX, 0),
        spending(pd.DataFrame()),
    ):
        assert not isinstance(section.content, Markup)
    if len(trials) != 1:
        assert not isinstance(front(trials, MAX).content, Markup)

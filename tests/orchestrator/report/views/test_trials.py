from __future__ import annotations

import pandas as pd

from orchestrator.report.views.trials import MOST, details, ordered, trials
from tests.orchestrator.report.reading import parsed, tables_of, text_of

OBJECTIVES = {"val/accuracy": "max"}
TABLE = pd.DataFrame(
    {
        "status": ["finished", "failed"],
        "last/val/accuracy": [0.5, None],
        "val/accuracy": [0.75, None],
        "config/lr": [0.1, 0.2],
        "reports": [3.0, None],
        "step_s": [0.01, None],
        "error": [None, "<script>alert(1)</script>" + "x" * 100],
        "stopped": [None, None],
    },
    index=["trial-0000", "trial-0001"],
)


def test_what_was_chosen_and_reached_comes_first_and_empty_columns_are_left_out() -> None:
    assert ordered(TABLE, OBJECTIVES) == [
        "status",
        "config/lr",
        "val/accuracy",
        "step_s",
        "last/val/accuracy",
        "reports",
        "error",
    ]


def test_every_trial_has_its_row_and_can_be_picked() -> None:
    content = trials(TABLE, OBJECTIVES, "s").content
    (table,) = tables_of(content).values()
    assert table[0][1:4] == ["status", "lr", "val/accuracy"]
    assert table[1][:6] == ["trial-0000", "finished", "0.1", "0.75", "10 ms", "0.5"]
    assert table[2][-1] == "<script>alert(1)</script>" + "x" * 55 + "…"
    assert [row.get("data-trial") for row in parsed(content).iter("tr")][1:] == list(TABLE.index)
    assert [text_of(head) for head in parsed(content).iter("th") if head.get("data-aside") is not None] == [
        "last/val/accuracy"
    ]


def test_a_trial_is_told_whole_with_its_error() -> None:
    first, second = (one for one in parsed(details(TABLE, OBJECTIVES, "runs/s").content).iter("details"))
    assert (first.get("id"), text_of(first).startswith("trial-0000 finished lr 0.1")) == ("trial-0000", True)
    assert "hookyard report runs/s/trials/trial-0000" in text_of(first)
    told = tables_of(details(TABLE.iloc[:1], OBJECTIVES, "runs/s").content)
    assert told["Metrics"] == [["metric", "at its best report", "last"], ["val/accuracy", "0.75", "0.5"]]
    assert told["Costs"][1:] == [["step_s", "10 ms"], ["reports", "3"]]
    (error,) = second.iter("pre")
    assert error.text == TABLE["error"].iloc[1]


def test_of_very_many_trials_the_best_and_the_failed_are_told() -> None:
    table = pd.DataFrame(
        {"status": ["finished"] * (MOST + 5) + ["failed"], "val/accuracy": 0.5},
        index=[f"t{place}" for place in range(MOST + 6)],
    )
    content = parsed(details(table, OBJECTIVES, "s").content)
    assert [one.get("id") for one in content.iter("details")][-2:] == [f"t{MOST - 1}", f"t{MOST + 5}"]
    links = [one.get("href") for one in parsed(trials(table, OBJECTIVES, "s").content).iter("a")]
    assert links == [f"#{one.get('id')}" for one in content.iter("details")]


def test_no_trial_is_said() -> None:
    empty = pd.DataFrame()
    assert "No trial has begun" in str(trials(empty, OBJECTIVES, "s").content)
    assert "No trial has begun" in str(details(empty, OBJECTIVES, "s").content)

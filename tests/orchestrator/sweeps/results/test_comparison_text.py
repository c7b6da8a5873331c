"""The text of comparisons: values with their changes from the first, and notes."""

from dataclasses import replace
from math import inf, nan

import pytest

from orchestrator.sweeps.results.comparison import SweepComparison
from orchestrator.sweeps.results.comparison_text import describe_comparison
from orchestrator.sweeps.results.paired_comparison import PairedDifferences
from orchestrator.tables.compared_values import ComparedValues, Verdict
from orchestrator.tables.run_comparison import RunComparison

RUNS = RunComparison(
    runs=["one", "two"],
    ranks=[1, 2],
    config={},
    metrics={},
    not_known=[],
    costs={},
    environment={},
)
SWEEPS = SweepComparison(
    sweeps=["one", "two"],
    trials=[{"finished": 3, "failed": 1}, {}],
    config={},
    chosen={},
    metrics={},
    same_values={},
    costs={},
    environment={},
)


def read_tables(comparison: RunComparison | SweepComparison) -> dict[str, list[tuple[str, ...]]]:
    return {table.title: table.rows for table in describe_comparison(comparison).tables}


def test_summary_has_the_number_of_ranks_or_of_trials() -> None:
    assert describe_comparison(RUNS).summary == "one (1 rank), two (2 ranks)"
    assert describe_comparison(SWEEPS).summary == "one (3 finished, 1 failed), two (no trial)"


def test_empty_tables_say_what_they_lack() -> None:
    runs = {table.title: table.empty for table in describe_comparison(RUNS).tables}
    assert runs == {
        "config": "no difference",
        "environment": "no difference",
        "metrics": "none yet",
        "costs": "none yet",
    }
    sweeps = {table.title: table.empty for table in describe_comparison(SWEEPS).tables}
    assert sweeps == runs | {"best trial": "no values", "pairs with the same values": "no pairs"}


def test_settings_have_all_their_digits() -> None:
    config = {"optimizer.lr": [0.1234567890123, None], "hooks.ema": [True, [1, 2]]}
    assert read_tables(replace(RUNS, config=config))["config"] == [
        ("optimizer.lr", "0.1234567890123", "-"),
        ("hooks.ema", "True", "1, 2"),
    ]


@pytest.mark.parametrize(
    ("first", "value", "verdict", "shown", "has_note"),
    [
        (0.5, 0.25, "less", "250 ms (-50.0%)", False),
        (-0.5, -0.25, "more", "-250 ms (+50.0%)", False),
        (0.5, 0.25, "noise", "250 ms (-50.0%, noise)", False),
        (0.5, 0.25, "unknown", "250 ms (-50.0%, ?)", True),
        (0.0, 0.25, "unknown", "250 ms (?)", True),
        (0.0, 0.25, "more", "250 ms", False),
        (0.25, 0.25, "unknown", "250 ms (equal)", False),
        (None, 0.25, "unknown", "250 ms", False),
        (0.25, None, "unknown", "-", False),
        (0.25, nan, "unknown", "nan", False),
        (0.25, inf, "unknown", "∞", False),
    ],
)
def test_change_has_its_size_and_its_verdict(
    first: float | None, value: float | None, verdict: Verdict, shown: str, has_note: bool
) -> None:
    """A note explains the question mark where there is one."""
    costs = {"step_s": ComparedValues([first, value], [None, verdict])}
    for comparison in (replace(RUNS, costs=costs), replace(SWEEPS, costs=costs)):
        ((_, _, change),) = read_tables(comparison)["costs"]
        assert change == shown
        notes = describe_comparison(comparison).notes
        assert notes == (["?: too few values to tell from noise"] if has_note else [])


def test_pairs_of_trials_have_their_number() -> None:
    paired = PairedDifferences([None, -0.01234, None], [None, 8, 0], [None, "less", "unknown"])
    comparison = replace(SWEEPS, same_values={"val/loss": paired})
    rows = read_tables(comparison)["pairs with the same values"]
    assert rows == [("val/loss", "-", "-0.01234 (8 pairs)", "-")]
    assert describe_comparison(comparison).notes == []


def test_pairs_say_whether_their_difference_is_noise_as_other_changes_do() -> None:
    paired = PairedDifferences([None, 0.5, 0.5], [None, 5, 1], [None, "noise", "unknown"])
    comparison = replace(SWEEPS, same_values={"val/loss": paired})
    rows = read_tables(comparison)["pairs with the same values"]
    assert rows == [("val/loss", "-", "+0.5 (5 pairs, noise)", "+0.5 (1 pair, ?)")]
    assert describe_comparison(comparison).notes == ["?: too few values to tell from noise"]


def test_metric_without_a_direction_has_a_note() -> None:
    (note,) = describe_comparison(replace(RUNS, not_known=["val/score"])).notes
    assert "hooks.checkpoint: {best: val/score, mode: max}" in note

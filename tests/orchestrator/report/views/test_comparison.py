import numpy as np
import pandas as pd
import pytest

from orchestrator.report.figures import BEST
from orchestrator.report.markup import Markup
from orchestrator.report.views.comparison import (
    MOST_CELLS,
    MOST_FAILED,
    MOST_ROWS,
    arrange_columns,
    describe_lines,
    render_coordinates,
    render_front,
    render_importance,
    render_progress,
    render_spending,
    render_trials,
    select_trials,
)
from orchestrator.sweeps.results.importance import make_importance_table
from tests.orchestrator.report.reading import charts_of, lines_of, parsed, tables_of, text_of

MAX = {"val/accuracy": "max"}
RATES = np.geomspace(0.001, 1, 12)
TRIALS = pd.DataFrame(
    {
        "config/lr": RATES,
        "config/width": [8, 16] * 6,
        "val/accuracy": np.linspace(0.5, 0.9, 12),
        "step_s": np.linspace(0.02, 0.01, 12),
        "status": "finished",
    },
    index=[f"t{place}" for place in range(12)],
)


@pytest.mark.parametrize(("count", "most"), [(5, 5), (9, 4), (1000, 10), (11, 10)])
def test_selection_has_the_best_half_and_an_even_rest(count: int, most: int) -> None:
    names = [str(place) for place in range(count)]
    chosen = select_trials(names, most)
    assert len({*chosen}) == len(chosen) == min(count, most)
    assert (chosen[: most // 2], chosen[-1]) == (names[: most // 2], names[-1])
    assert ("are drawn" in describe_lines("0", len(chosen), count)) == (count > most)


def test_coordinates_have_a_labeled_axis_for_each_value_and_metric() -> None:
    (chart,) = charts_of(render_coordinates(TRIALS[::-1], MAX, "t11").content).values()
    labels = [label["text"] for label in chart["layout"]["annotations"]]
    assert labels[:7] == ["0.001", "0.00562", "0.0316", "0.178", "1", "8", "16"]
    assert chart["layout"]["xaxis"]["ticktext"] == ["lr", "width", "val/accuracy", "step_s"]


def test_importance_matches_the_sweeps() -> None:
    table = tables_of(render_importance(TRIALS, MAX).content)["Importance for val/accuracy"]
    expected = make_importance_table(TRIALS, "val/accuracy")
    assert table == [
        ["parameter", "importance", "std. error"],
        *([name, f"{share:.1%}", f"{spread:.1%}"] for name, share, spread in expected.itertuples()),
    ]
    few = render_importance(TRIALS.iloc[:9], MAX)
    assert "Needs 10 trials with val/accuracy; there are 9 so far." in few.content


@pytest.mark.parametrize(
    ("trials", "objectives", "best"),
    [
        (TRIALS.assign(step_s=[0.01, 0.02] * 6), MAX, ["t10", "t11"]),
        (TRIALS.assign(cost=1.0), {"val/accuracy": "max", "cost": "min"}, ["t11"]),
    ],
)
def test_front_uses_the_metrics_or_one_metric_and_step_s(
    trials: pd.DataFrame, objectives: dict[str, str], best: list[str]
) -> None:
    (chart,) = charts_of(render_front(trials, objectives).content).values()
    dominated, on_front = chart["data"]
    assert on_front["text"] == best
    assert {*dominated["text"]} == {*trials.index} - {*best}


def test_every_trial_has_a_curve() -> None:
    reports = {
        "t0": [{"step": 1, "val/accuracy": 0.25}, {"step": 2, "val/accuracy": 0.75}],
        "t1": [{"step": 1, "val/accuracy": 0.5}],
        "t2": [],
    }
    curves = lines_of(charts_of(render_progress(reports, MAX, 3, "t0").content)["val/accuracy"])
    assert curves == {"t0": ([1, 2], [0.25, 0.75]), "t1": ([1], [0.5])}


@pytest.mark.parametrize("best", ["t2", None])
def test_best_trial_alone_is_orange(best: str | None) -> None:
    """It may lack one of the metrics. A sweep whose trials all failed has none."""
    reports = {f"t{index}": [{"step": 1, "val/accuracy": 0.5}] for index in range(3)}
    for content in (
        render_progress(reports, MAX, 3, best).content,
        render_coordinates(TRIALS.loc[["t0", "t1", "t2"]], MAX, best).content,
    ):
        (chart,) = charts_of(content).values()
        orange = [trace["name"] for trace in chart["data"] if trace["line"]["color"] == BEST]
        assert orange == [best] * (best is not None)
        assert ("orange" in content) == (best is not None)


def test_time_per_iteration_of_the_best_trials() -> None:
    spans = pd.DataFrame(
        {"forward_s": [0.01, 0.02], "all_reduce_wait_s": [0.01, np.nan]}, index=["t1", "t0"]
    )
    bars = lines_of(charts_of(render_spending(spans).content)["Mean iteration of each trial"])
    assert bars == {
        "forward_s": (["t1", "t0"], [10, 20]),
        "all_reduce_wait_s": (["t1", "t0"], [10, 0]),
    }


@pytest.mark.parametrize(
    "trials",
    [
        pd.DataFrame(),
        TRIALS.iloc[:1],
        TRIALS[["config/lr"]],
        TRIALS.assign(**{"val/accuracy": None, "step_s": None}),
    ],
)
def test_sections_without_data_are_explained(trials: pd.DataFrame) -> None:
    for section in (
        render_coordinates(trials, MAX, None),
        render_importance(trials, MAX),
        render_progress({}, MAX, 0, None),
        render_spending(pd.DataFrame()),
    ):
        assert not isinstance(section.content, Markup)
    if len(trials) != 1:
        assert not isinstance(render_front(trials, MAX).content, Markup)


OBJECTIVES = {"val/accuracy": "max"}
ERROR = "<script>alert(1)</script>" + "x" * 100
TABLE = pd.DataFrame(
    {
        "status": ["finished", "failed"],
        "last/val/accuracy": [0.5, None],
        "val/accuracy": [0.75, None],
        "config/lr": [0.1, 0.2],
        "reports": [3.0, None],
        "step_s": [0.01, None],
        "error": [None, ERROR],
        "stopped": [None, None],
    },
    index=["trial-0000", "trial-0001"],
)


def test_values_and_metrics_come_first_and_empty_columns_are_omitted() -> None:
    columns = [
        "status",
        "config/lr",
        "val/accuracy",
        "error",
        "step_s",
        "last/val/accuracy",
        "reports",
    ]
    assert arrange_columns(TABLE, OBJECTIVES) == columns


def test_every_trial_has_a_row_with_its_error() -> None:
    content = render_trials(TABLE, OBJECTIVES, "s").content
    (table,) = tables_of(content).values()
    assert table[0][1:4] == ["status", "lr", "val/accuracy"]
    assert table[1] == ["trial-0000", "finished", "0.1", "0.75", "", "10 ms", "0.5", "3"]
    (error,) = parsed(content).iter("details")
    assert text_of(error) == f"{ERROR[:80]}…{ERROR}"
    assert [name.get("id") for name in parsed(content).iter("span") if name.get("id")] == list(
        TABLE.index
    )


def test_table_of_many_trials_has_the_best_and_some_failed() -> None:
    names = [f"t{place}" for place in range(MOST_ROWS + MOST_FAILED + 9)]
    status = ["finished"] * (MOST_ROWS + 5) + ["failed"] * (MOST_FAILED + 4)
    table = pd.DataFrame({"status": status, "val/accuracy": 0.5}, index=names)
    section = render_trials(table, OBJECTIVES, "s")
    (rows,) = tables_of(section.content).values()
    assert [row[0] for row in rows[1:]] == names[:MOST_ROWS] + names[MOST_ROWS + 5 : -4]
    assert section.note.startswith(f"{MOST_ROWS + MOST_FAILED:,} of {len(names):,} trials")
    wide = table.assign(**{f"config/{place}": 1.0 for place in range(98)})
    (rows,) = tables_of(render_trials(wide.head(MOST_ROWS), OBJECTIVES, "s").content).values()
    assert len(rows[1:]) == MOST_CELLS // 100

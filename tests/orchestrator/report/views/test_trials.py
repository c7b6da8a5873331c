import pandas as pd

from orchestrator.report.views.trials import (
    MAX_CELLS,
    MAX_FAILED,
    MAX_ROWS,
    arrange_columns,
    render_trials,
)
from tests.orchestrator.report.reading import parsed, tables_of, text_of

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
    names = [f"t{place}" for place in range(MAX_ROWS + MAX_FAILED + 9)]
    status = ["finished"] * (MAX_ROWS + 5) + ["failed"] * (MAX_FAILED + 4)
    table = pd.DataFrame({"status": status, "val/accuracy": 0.5}, index=names)
    section = render_trials(table, OBJECTIVES, "s")
    (rows,) = tables_of(section.content).values()
    assert [row[0] for row in rows[1:]] == names[:MAX_ROWS] + names[MAX_ROWS + 5 : -4]
    assert section.note.startswith(f"{MAX_ROWS + MAX_FAILED:,} of {len(names):,} trials")
    wide = table.assign(**{f"config/{place}": 1.0 for place in range(98)})
    (rows,) = tables_of(render_trials(wide.head(MAX_ROWS), OBJECTIVES, "s").content).values()
    assert len(rows[1:]) == MAX_CELLS // 100

"""`hookyard stats`, on rows written as ranks write them."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.disk.new_run import create_run
from orchestrator.storage import Storage
from tests.orchestrator.tables.test_frames import FRESH, record, row


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two ranks; an iteration takes as many seconds as its number, and half as much again on rank
    1."""
    folder = create_run(tmp_path_factory.mktemp("runs"), "made", "hooks: {}\n")
    steps = [
        row(
            0,
            "train",
            n // 3,
            n,
            n,
            rank,
            step_s=n * (1 + rank / 2),
            data_wait_s=0.25 * n,
            loss=float("nan") if n == 4 else 1.0 / n,
        )
        for rank in (0, 1)
        for n in range(1, 6)
    ]
    record(Storage(str(folder)), [*steps, row(0, "val", 1, 1, 5, accuracy=0.5)])
    folder.storage.write("stats/attempt=0/attempt.json", json.dumps(asdict(FRESH)))
    return str(folder)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["stats", *arguments])


def data(*arguments: str) -> list[dict[str, Any]]:
    done = call(*arguments, "--format", "json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_by_row_prints_the_recorded_rows(run: str) -> None:
    rows = data(
        run,
        "--by",
        "row",
        "--columns",
        "iteration, loss,accuracy",
        "--where",
        "rank == 0 and iteration > 2",
    )
    assert rows == [
        {"iteration": 3, "loss": 1 / 3, "accuracy": None},
        {"iteration": 4, "loss": None, "accuracy": None},
        {"iteration": 5, "loss": 0.2, "accuracy": None},
    ]


@pytest.mark.parametrize(
    ("by", "first"),
    [
        ((), {"column": "loss", "max": 1.0}),
        (("--by", "rank"), {"rank": 0, "loss": pytest.approx(0.4167, abs=1e-4)}),
        (("--by", "node"), {"node": "here", "loss": pytest.approx(0.4167, abs=1e-4)}),
        (("--by", "phase"), {"phase": "train", "loss": pytest.approx(0.4167, abs=1e-4)}),
        (("--by", "row"), {"loss": 1.0}),
    ],
)
def test_every_requested_column_is_printed(
    run: str, by: tuple[str, ...], first: dict[str, Any]
) -> None:
    """Losses are 1, 1/2, 1/3, none and 1/5 on both ranks; iterations 1 to 5 count, and nothing was
    measured twice."""
    found = data(run, *by, "--columns", "loss,loss")[0]
    assert {name: found[name] for name in first} == first
    counted = data(run, *by, "--columns", "iteration,accuracy", "--where", "phase == 'train'")
    assert "iteration" in str(counted)
    assert "accuracy" in str(counted)


@pytest.mark.parametrize("by", [(), ("--by", "rank"), ("--by", "node"), ("--by", "span")])
def test_stats_refuses_a_column_that_cannot_be_summarized(run: str, by: tuple[str, ...]) -> None:
    done = call(run, *by, "--columns", "phase")
    assert (done.exit_code, done.stdout) == (2, "")
    assert (
        "column 'phase' is not a span" in done.stderr or "column 'phase' holds text" in done.stderr
    )


def test_a_summary_of_some_rows_and_columns(run: str) -> None:
    assert data(run, "--columns", "step_s", "--where", "rank == 1") == [
        {
            "column": "step_s",
            "min": 1.5,
            "median": 4.5,
            "p95": pytest.approx(7.2),
            "max": 7.5,
            "worst_rank": 1,
        }
    ]
    assert [(one["node"], one["ranks"], one["rows"]) for one in data(run, "--by", "node")] == [
        ("here", 2, 10)
    ]
    # 15 seconds and 22.5, of which 3.75 and 3.75 are waiting
    for columns in ([], ["--columns", "data_wait_s"]):
        (one,) = data(run, "--by", "span", *columns)
        assert (one["span"], one["seconds"], one["share"]) == ("data_wait_s", 7.5, 0.2)
    assert [one["rows"] for one in data(run, "--by", "rank", "--where", "epoch == 0")] == [2, 2]


def test_a_table_for_people(run: str) -> None:
    where = "rank == 0 and iteration < 3 and phase == 'train'"
    lines = call(
        run, "--by", "row", "--columns", "iteration,step_s", "--where", where
    ).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["iteration", "step_s"],
        ["1", "1", "s"],
        ["2", "2", "s"],
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--where", "epok > 1"], "no column 'epok'; did you mean 'epoch'?"),
        (["--where", "iteration % rank = 1"], "where: the condition failed: Division by zero"),
        (["--columns", "step_z"], "no column 'step_z'; did you mean 'step_s'?"),
        (
            ["--by", "span", "--columns", "loss"],
            "'loss' is not a span of the iteration; the spans are data_wait_s",
        ),
        (["--by", "hook", "--where", "rank == 0"], "cannot be combined with --where or --columns"),
        (["--format", "parquet"], "--output FILE"),
        (["--output", "x.txt"], "--format csv, json or parquet"),
        (
            ["--format", "csv", "--output", "/nowhere/at/all.csv"],
            "cannot write /nowhere/at/all.csv",
        ),
        (["--by", "host"], "'host'"),
    ],
)
def test_stats_reports_wrong_usage(run: str, arguments: list[str], says: str) -> None:
    wrong = call(run, *arguments)
    assert wrong.exit_code == 2
    assert says in wrong.stderr
    assert "Traceback" not in wrong.output


def test_a_query_in_sql(run: str) -> None:
    longest = "select rank, max(step_s) as step_s from rows where phase = 'train' group by rank order by rank"
    assert data(run, "--query", longest) == [{"rank": 0, "step_s": 5.0}, {"rank": 1, "step_s": 7.5}]
    assert call(run, "--query", longest).stdout.splitlines()[1].split() == ["0", "5", "s"]
    wrong = call(run, "--query", "select step_z from rows")
    assert wrong.exit_code == 2
    assert "LINE 1: select step_z from rows" in wrong.stderr
    assert "leave out --by" in call(run, "--by", "rank", "--query", longest).stderr

"""`hookyard query`: SQL on all runs of a storage."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
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


def test_query_of_all_runs_prints_a_table_and_data(run: str, tmp_path: Path) -> None:
    storage = str(Path(run).parent)

    def ask(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["query", *arguments, "--storage", storage])

    assert ask("select name, [1, 2] as pair from runs").stdout.splitlines() == [
        "name  pair",
        f"{Path(run).name}  1, 2",
    ]
    sql = "select name, kind, tags from runs"
    expected = [{"name": Path(run).name, "kind": "run", "tags": []}]
    assert json.loads(ask(sql, "--json").stdout) == expected
    assert ask(sql, "--format", "csv").stdout == f"name,kind,tags\n{Path(run).name},run,[]\n"
    file = tmp_path / "runs.parquet"
    assert ask(sql, "--format", "parquet", "--output", str(file)).exit_code == 0
    assert pd.read_parquet(file)["name"].tolist() == [Path(run).name]

    wrong = ask("select nam from runs")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert wrong.stderr == 'query: there is no column nam; did you mean "name"?\n'
    nowhere = CliRunner().invoke(app, ["query", sql, "--storage", f"{tmp_path}/nowhere"])
    assert nowhere.exit_code == 2
    assert nowhere.stderr.startswith(f"the folder {tmp_path}/nowhere does not exist; ")

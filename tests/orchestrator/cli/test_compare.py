"""`hookyard compare`."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.storage import Storage
from tests.orchestrator.runs.written import change
from tests.orchestrator.tables.test_frames import FRESH, record, row


def made(place: Path, name: str, lr: float, step_s: float, ranks: int) -> str:
    folder = create_run(
        place, name, f"name: {name}\noptimizer: {{type: SGD, lr: {lr}}}\nhooks: {{}}\n"
    )
    times = step_s * (1 + 0.01 * np.random.default_rng(ranks).normal(size=(ranks, 60)))
    record(
        Storage(str(folder)),
        [
            row(0, "train", 0, n, n, rank, step_s=times[rank, n - 1], batch_size=8)
            for rank in range(ranks)
            for n in range(1, 61)
        ],
    )
    folder.storage.write("stats/attempt=0/attempt.json", json.dumps(asdict(FRESH)))
    counters = {"attempt": 0, "epoch": 0, "step": 60, "iteration": 60}
    folder.append_report({**counters, "val/loss": -step_s, "val/score": 1.0, "val/f1": ranks - 1})
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("runs")
    return [
        made(place, "one", 0.1, 0.5, 1),
        made(place, "two", 0.100001, 0.25, 2),
        made(place, "same", 0.1, 0.5, 1),
    ]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


def test_compare_prints_json(runs: list[str]) -> None:
    found = json.loads(call(*runs, "--json").stdout)
    assert (found["runs"], found["ranks"]) == (["one", "two", "same"], [1, 2, 1])
    assert found["config"] == {"optimizer.lr": [0.1, 0.100001, 0.1]}
    assert found["costs"]["step_s"]["findings"] == [None, "less", "noise"]
    assert found["costs"]["samples_per_s"]["findings"] == [None, "more", "noise"]
    assert found["metrics"]["val/loss last"] == {
        "values": [-0.5, -0.25, -0.5],
        "findings": [None, "unknown", "unknown"],
    }


def test_compare_prints_a_table(runs: list[str]) -> None:
    printed = call(*runs).stdout
    assert printed.startswith("one (1 rank), two (2 ranks), same (1 rank)\n")
    lines = {line.split()[0]: line for line in printed.splitlines() if line}
    assert lines["optimizer.lr"].split()[1:] == ["0.1", "0.100001", "0.1"]
    assert "(equal)" in lines["step_s"]
    assert "-0.25 (+50.0%, ?)" in lines["val/loss"]
    assert " 1 (?) " in lines["val/f1"]
    assert "val/score best" not in printed
    assert "hooks.checkpoint: {best: val/score, mode: max}" in printed


def test_compare_prints_configurations_with_all_their_digits(tmp_path: Path) -> None:
    made_runs = [
        made(tmp_path, "one", 0.1234567890123, 0.5, 1),
        made(tmp_path, "two", 0.1234567890124, 0.5, 1),
    ]
    lines = {line.split()[0]: line for line in call(*made_runs).stdout.splitlines() if line}
    assert lines["optimizer.lr"].split()[1:] == ["0.1234567890123", "0.1234567890124"]


def test_compare_explains_the_question_mark_where_there_is_one(runs: list[str]) -> None:
    one, two, same = runs
    assert "?: too few values" in call(one, two).stdout
    assert "?" not in call(one, same).stdout


def test_compare_names_the_packages_that_differ(runs: list[str]) -> None:
    common = {"python": "3.11.7", "git": {"commit": "abc", "dirty": False}}
    change(RunFolder(runs[0]), packages={"torch": "2.9.0", "numpy": "2.1"}, **common)
    change(RunFolder(runs[1]), packages={"torch": "2.8.0", "numpy": "2.1", "lion": "1.0"}, **common)
    found = json.loads(call(*runs[:2], "--json").stdout)["environment"]
    assert found == {"packages.torch": ["2.9.0", "2.8.0"], "packages.lion": [None, "1.0"]}
    lines = [line.split() for line in call(*runs[:2]).stdout.splitlines()]
    assert ["packages.torch", "2.9.0", "2.8.0"] in lines
    assert ["packages.lion", "-", "1.0"] in lines


def test_compare_refuses_a_single_run(runs: list[str]) -> None:
    alone = call(runs[0])
    assert alone.exit_code == 2
    assert "two or more runs" in alone.stderr
    missing = call(runs[0], "runs/none")
    assert missing.exit_code == 2
    assert "is not a run: it does not exist" in missing.stderr

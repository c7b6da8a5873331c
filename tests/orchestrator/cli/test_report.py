"""`hookyard report` and `hookyard compare`."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.cli.report import folder_and_name
from orchestrator.records.new_run import create_run
from orchestrator.storage import Storage
from tests.orchestrator.stats.insight.runs import FALLING, training
from tests.orchestrator.stats.read.test_tables import FRESH, record, row


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "run.json").write_text(
        json.dumps({"name": "digits", "status": "finished", "started": "2026-01-01T00:00:00Z"})
    )
    (folder / "experiment.yaml").write_text("name: digits\n")
    training(2, loss=FALLING).assign(attempt=0, samples=32).to_parquet(folder / "stats.parquet")
    return folder


def test_the_page_lies_in_the_run_s_folder(run: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(run)])
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{run}/report.html\n", "")
    assert "<title>digits - Hookyard</title>" in (run / "report.html").read_text()


def test_it_can_be_written_elsewhere(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["report", str(run), "--output", "pages/digits.html"]).exit_code == 0
    assert CliRunner().invoke(app, ["report", str(run), "--output", "here.html"]).stdout == f"{tmp_path}/here.html\n"
    assert (tmp_path / "pages" / "digits.html").exists()
    assert not (run / "report.html").exists()


def test_a_run_in_object_storage_gets_its_page_there(run: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(run), "/report-test", recursive=True)
    try:
        result = CliRunner().invoke(app, ["report", "memory://report-test"])
        assert (result.exit_code, result.stdout) == (0, "memory://report-test/report.html\n")
        assert memory.cat("/report-test/report.html").startswith(b"<!DOCTYPE html>")
        result = CliRunner().invoke(app, ["report", str(run), "--output", "memory://report-test/pages/digits.html"])
        assert (result.exit_code, result.stdout) == (0, "memory://report-test/pages/digits.html\n")
        assert memory.cat("/report-test/pages/digits.html").startswith(b"<!DOCTYPE html>")
    finally:
        memory.rm("/report-test", recursive=True)


@pytest.mark.parametrize(
    ("output", "location", "name"),
    [
        ("page.html", str(Path.cwd()), "page.html"),
        ("/page.html", "/", "page.html"),
        ("memory://a/b.html?x=1", "memory://a?x=1", "b.html"),
    ],
)
def test_a_place_is_a_folder_and_a_name(output: str, location: str, name: str) -> None:
    storage, found = folder_and_name(output)
    assert (storage.location, found) == (location, name)


def test_what_cannot_be_is_wrong_usage_and_leaves_nothing(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for arguments, words in (
        ([str(tmp_path)], "is not a run"),
        ([str(run), "--output", f"{tmp_path}/"], "is a folder: name a file"),
        ([str(run), "--output", f"{tmp_path}/file/page.html"], "cannot write"),
        ([str(run), "--output", str(tmp_path / "digits")], "cannot write"),
    ):
        result = CliRunner().invoke(app, ["report", *arguments])
        assert (result.exit_code, result.stdout) == (2, "")
        assert words in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits", "file"]
    assert sorted(path.name for path in run.iterdir()) == ["experiment.yaml", "run.json", "stats.parquet"]


def made(place: Path, name: str, lr: float, step_s: float, ranks: int) -> str:
    folder = create_run(place, name, f"name: {name}\noptimizer: {{type: SGD, lr: {lr}}}\nhooks: {{}}\n")
    times = step_s * (1 + 0.01 * np.random.default_rng(ranks).normal(size=(ranks, 60)))
    record(
        Storage(str(folder)),
        [
            row(0, "train", 0, n, n, rank, step_s=times[rank, n - 1], batch_size=8)
            for rank in range(ranks)
            for n in range(1, 61)
        ],
    )
    folder.storage.write("stats/attempt=0/attempt.json", json.dumps(FRESH.entries()))
    folder.append_metrics(
        {"attempt": 0, "epoch": 0, "step": 60, "iteration": 60, "samples": 480, "val/loss": step_s, "val/score": 1.0}
    )
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("runs")
    return [made(place, "one", 0.1, 0.5, 1), made(place, "two", 0.2, 0.25, 2), made(place, "same", 0.1, 0.5, 1)]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


def test_what_differs_as_json(runs: list[str]) -> None:
    found = json.loads(call(*runs, "--json").stdout)
    assert (found["runs"], found["ranks"]) == (["one", "two", "same"], [1, 2, 1])
    assert found["config"] == {"optimizer.lr": [0.1, 0.2, 0.1]}
    assert found["costs"]["step_s"]["findings"] == [None, "less", "noise"]
    assert found["costs"]["samples_per_s"]["findings"] == [None, "more", "noise"]
    assert found["metrics"]["val/loss last"] == {"values": [0.5, 0.25, 0.5], "findings": [None, "unknown", "unknown"]}


def test_what_differs_as_a_table(runs: list[str]) -> None:
    printed = call(*runs).stdout
    assert printed.startswith("one (1 rank), two (2 ranks), same (1 rank)\n")
    lines = {line.split()[0]: line for line in printed.splitlines() if line}
    assert lines["optimizer.lr"].split()[1:] == ["0.1", "0.2", "0.1"]
    assert "(+0.0%, noise)" in lines["step_s"]
    assert "(-50.0%, unknown)" in lines["val/loss"]
    assert "val/score best" not in printed
    assert "hooks.checkpoint: {best: val/score, mode: max}" in printed


def test_one_run_is_compared_with_nothing(runs: list[str]) -> None:
    alone = call(runs[0])
    assert alone.exit_code == 2
    assert "two or more runs" in alone.stderr
    missing = call(runs[0], "runs/none")
    assert missing.exit_code == 2
    assert "no run" in missing.stderr

"""`hookyard doctor` on runs made by hand."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from orchestrator.cli import app
from tests.orchestrator.doctor.runs import FALLING, slower, training


def made(folder: Path, stats: pd.DataFrame) -> str:
    folder.mkdir()
    (folder / "run.json").write_text(
        json.dumps({"name": folder.name, "status": "finished", "started": "2026-01-01T00:00:00Z"})
    )
    stats = stats.assign(attempt=0, samples=stats["step"] * 32)
    columns = {
        name: stats[name].to_numpy() for name in stats
    }  # pandas itself would turn NaN into null
    parquet.write_table(pyarrow.table(columns), folder / "stats.parquet")
    return str(folder)


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    return made(tmp_path / "healthy", training(2, loss=FALLING))


@pytest.fixture
def slow(tmp_path: Path) -> str:
    return made(tmp_path / "slow", training(2, change=slower("forward_s", 1, 0.02), loss=FALLING))


def test_healthy_run_has_no_findings(healthy: str) -> None:
    result = CliRunner().invoke(app, ["doctor", healthy])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{healthy}: no findings. 200 training iterations of 2 ranks")


def test_finding_has_sentence_query_and_advice(slow: str) -> None:
    result = CliRunner().invoke(app, ["doctor", slow])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[2].startswith("1. straggler: rank 1 (node0) is slow in forward_s")
    assert lines[3].startswith("   see: ")
    assert lines[4].startswith("   try: ")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_printed_commands_can_be_copied(tmp_path: Path, flags: list[str]) -> None:
    """In a folder whose name a shell takes apart, and which is called as a run is in them."""
    values = np.tile(FALLING, (1, 2))
    values[99, 1] = np.nan
    run = made(tmp_path / "it's a RUN", training(2, loss=values))
    told = CliRunner().invoke(app, ["doctor", run, *flags]).stdout
    commands = [
        shlex.split(json.loads(f'"{one}"') if flags else one)
        for one in re.findall("hookyard (?:samples|replay) .*? --rank 1", told)
    ]
    assert commands == [
        ["hookyard", "samples", run, "--where", "iteration = 100", "--rank", "1"],
        ["hookyard", "replay", run, "--iteration", "100", "--rank", "1"],
    ]


def test_json_has_the_same_findings(slow: str) -> None:
    told = json.loads(CliRunner().invoke(app, ["doctor", slow, "--json"]).stdout)
    assert told["healthy"] is False
    assert told["findings"][0]["numbers"]["rank"] == 1
    assert told["signs"]["ranks"] == 2


def test_doctor_without_a_run_checks_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    looked = CliRunner().invoke(app, ["doctor", "--storage", str(tmp_path / "runs")])
    assert looked.exit_code == 0, looked.output
    assert looked.stdout.splitlines()[0].split()[:5] == [
        "node",
        "python",
        "torch",
        "ray",
        "project",
    ]
    assert f"1 node and storage {tmp_path}/runs: ready" in looked.stderr
    told = json.loads(
        CliRunner().invoke(app, ["doctor", "--storage", str(tmp_path), "--json"]).stdout
    )
    assert told["nodes"][0]["answers"]["facts"]["versions"] == told["driver"]["versions"]


def test_unwritable_storage_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    looked = CliRunner().invoke(app, ["doctor", "--storage", str(tmp_path / "file")])
    assert (looked.exit_code, looked.stdout) == (2, "")
    assert f"storage {tmp_path}/file cannot be written from here" in looked.stderr

"""`hookyard watch`, on runs and sweeps written by hand."""

import importlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.disk.process import Process
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status
from tests.orchestrator.disk.test_lease import put
from tests.orchestrator.doctor.runs import slower, training
from tests.orchestrator.runs.written import NOBODY, change, rows_of, written_run
from tests.orchestrator.terminal.test_sweep_status import trial, written_sweep

watch = importlib.import_module("orchestrator.cli.watch")
"""The module; the package has the verb under its name."""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = written_run(tmp_path)
    rows_of(folder, training(2, 100, slower("forward_s", 1, 0.02), loss=0.5, samples=0))
    return folder


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["watch", *arguments])


def test_a_pipe_gets_one_frame_without_control_characters(run: RunFolder) -> None:
    for arguments in ([str(run)], [str(run), "--once"]):
        result = call(*arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        lines = result.stdout.splitlines()
        assert lines[0] == f"{run}  running"
        assert "25%" in lines[1]
        assert "+20 ms forward_s" in next(
            line for line in lines if line.lstrip().startswith("1  node0")
        )
        assert "\x1b" not in result.stdout


def test_json_has_the_contents_of_a_frame(run: RunFolder) -> None:
    run.append_report(
        {
            "attempt": 0,
            "time": "2026-01-01T00:00:00Z",
            "epoch": 0,
            "step": 100,
            "iteration": 100,
            "val/loss": float("nan"),
        }
    )
    told = json.loads(
        call(str(run), "--json").stdout,
        parse_constant=lambda name: pytest.fail(f"{name} is no JSON"),
    )
    assert (told["status"], told["progress"]["share"], told["speed"]["loss"]) == (
        "running",
        0.25,
        0.5,
    )
    assert [rank["timing"]["slowest"] for rank in told["ranks"]] == [False, True]
    assert told["report"]["val/loss"] is None


def test_run_with_a_claimed_lease_is_running(run: RunFolder) -> None:
    """A resume reads the experiment and imports torch before it trains, and whoever watches comes
    sooner."""
    run.run_file.end("interrupted")
    claim = put(run.storage, replace(Process.current(), pid=os.getppid(), process_started=None))
    shown = call(str(run), "--once")
    claim.unlink()
    assert (shown.exit_code, shown.stdout.splitlines()[0]) == (0, f"{run}  running")
    assert call(str(run), "--once").exit_code == 130


@pytest.mark.parametrize(
    ("status", "code"),
    [("finished", 0), ("stopped", 0), ("failed", 1), ("lost", 1), ("interrupted", 130)],
)
def test_exit_code_is_that_of_the_run(run: RunFolder, status: str, code: int) -> None:
    change(run, pid=NOBODY) if status == "lost" else run.run_file.end(status)
    result = call(str(run), "--once")
    assert result.exit_code == code
    assert result.stdout.startswith(f"{run}  {status}")


def test_watch_shows_a_table_of_trials(tmp_path: Path) -> None:
    sweep = written_sweep(tmp_path, trials=2)
    trial(sweep, 0, 0.5, status="finished")
    trial(sweep, 1, 0.25)
    result = call(str(sweep))
    assert result.exit_code == 0
    assert "1 of 2 trials ended" in result.stdout
    assert [trial["name"] for trial in json.loads(call(str(sweep), "--json").stdout)["trials"]] == [
        "trial-0001",
        "trial-0000",
    ]
    RunFolder(sweep.storage / "trials", "trial-0001").run_file.end("failed", error="broken")
    sweep.run_file.end("finished")
    assert call(str(sweep)).exit_code == 3


def test_watch_updates_until_the_run_ends(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            run.run_file.end("finished")

    slept: list[float] = []
    monkeypatch.setattr(watch.time, "sleep", sleep)
    result = on_a_terminal(monkeypatch, str(run))
    assert (result.exit_code, slept) == (0, [1.0, 1.0])
    words = result.stdout.split()  # a long name leaves the first line no room for more
    assert words[:2] == [str(run), "finished"]
    assert "100%" in words


def test_ctrl_c_leaves_the_run_running(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", sleep)
    result = on_a_terminal(monkeypatch, str(run))
    assert (result.exit_code, result.stderr.strip()) == (
        130,
        f"Stopped watching. {run} is still running.",
    )
    assert find_status(run) == "running"


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    """As if stdout were a terminal, though without one's control characters."""
    terminal = type("Terminal", (), {"isatty": lambda self: True})()

    class Stdout:
        def __getattr__(self, name: str) -> Any:
            return terminal.isatty if name == "isatty" else getattr(sys.stdout, name)

    monkeypatch.setattr(watch, "sys", type("Sys", (), {"stdout": Stdout()}))
    return call(*arguments)

"""What is typed to use a checkpoint, as `hookyard show` prints it."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from orchestrator import Run, Sweep, run
from orchestrator.cli import app
from tests.orchestrator.runs.written import change
from tests.tasks import described


def answer(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(
        described(epochs=3, hooks={"checkpoint": {"keep": 1}}),
        tmp_path_factory.mktemp("runs"),
        local=True,
    )


def test_printed_code_and_command_work_as_they_are(done: Run, tmp_path: Path) -> None:
    use = json.loads(answer("show", str(done.path), "--json"))["use"]
    typed: dict[str, Any] = {}
    exec(use["python"], typed)
    for name, weight in done.weights("best").items():
        assert torch.equal(typed["model"].state_dict()[name], weight)
    assert use["command"].endswith(" epochs=6 --local")
    plan = json.loads(
        answer(*shlex.split(use["command"])[1:], "--storage", str(tmp_path), "--plan", "--json")
    )
    assert done.best is not None
    assert plan["continued_from"]["checkpoint"] == done.best.checkpoint
    assert plan["config"]["epochs"] == 6


def test_printed_command_doubles_a_schedule_as_long_as_the_run(tmp_path: Path) -> None:
    done = run(
        described(scheduler={"type": "CosineAnnealingLR", "T_max": 2, "eta_min": 2}),
        tmp_path,
        local=True,
    )
    assert json.loads(answer("show", str(done.path), "--json"))["use"]["command"].endswith(
        " epochs=4 scheduler.T_max=4 --local"
    )


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_run_that_can_be_resumed_is_resumed(tmp_path: Path, status: str) -> None:
    ended = run(described(epochs=1), tmp_path, local=True)
    change(ended.folder, status=status)
    path = shlex.quote(str(ended.path))
    assert f"  resume:          hookyard resume {path}\n" in answer("show", str(ended.path))


def test_last_checkpoint_is_offered_without_validation(tmp_path: Path) -> None:
    done = run(described(epochs=1, validate_every=0), tmp_path, local=True)
    assert done.best is None
    known = json.loads(answer("show", str(done.path), "--json"))
    assert known["best"] is None
    assert "@last epochs=2" in known["use"]["command"]
    assert 'load("last")' in known["use"]["python"]
    assert "best" not in answer("show", str(done.path))


def test_sweep_offers_its_best_trial(outcome: Sweep, tmp_path: Path) -> None:
    best = vars(outcome.best.best)
    (listed,) = json.loads(answer("ls", "--storage", str(tmp_path), "--json"))
    assert listed["best"] == {"trial": outcome.best.name, **best}
    known = json.loads(answer("show", str(outcome.path), "--json"))
    assert (known["reached"], best["value"]) == (best, known["value"])
    typed: dict[str, Any] = {}
    exec(known["use"]["python"], typed)
    for name, weight in outcome.best.weights("best").items():
        assert torch.equal(typed["model"].state_dict()[name], weight)
    plan = json.loads(answer(*shlex.split(known["use"]["command"])[1:], "--plan", "--json"))
    assert plan["continued_from"]["run"] == str(outcome.best.path)
    shown = answer("show", str(outcome.path))
    assert known["use"]["python"] in shown
    assert f"train it longer: {known['use']['command']}" in shown

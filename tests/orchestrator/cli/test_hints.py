"""What is said of a run beside its numbers: how to use it, what it reached in each phase, and what
costs time."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from orchestrator import UsageError, open_run, run, sweep
from orchestrator.cli import app
from orchestrator.doctor import diagnose
from orchestrator.runs.overview import describe_run
from orchestrator.task import Task
from tests.orchestrator.runs.written import change
from tests.tasks import described


@dataclass
class Counts(Task):
    """Trains no model: counts."""

    def train(self, session: Any) -> Any:  # type: ignore[override]  # a task's own loop
        session.restore()
        for count in range(2):
            session.record(loss=1.0 / (count + 1))
            yield {"val/loss": 1.0 / (count + 1)}


def test_printed_python_finds_the_checkpoint_of_a_custom_loop(tmp_path: Path) -> None:
    hooks = {"checkpoint": {"every": 1, "best": "val/loss"}}
    own = described(
        task=f"{__name__}:Counts",
        task_args={},
        epochs=2,
        hooks=hooks,
        batch_size=None,
        optimizer=None,
    )
    run(own, tmp_path, "counts", local=True)
    use = describe_run(open_run(tmp_path / "counts").folder)["use"]
    assert use
    assert ".load(" not in use.python
    names: dict[str, Any] = {}
    exec(use.python, names)
    assert (Path(names["path"]) / "manifest.json").is_file()


def test_show_has_the_last_metrics_of_each_phase(tmp_path: Path) -> None:
    done = run(described(epochs=2, task_args={"test": 12}), tmp_path, "points", local=True)
    out = CliRunner().invoke(app, ["show", str(done.path)]).stdout
    assert out.splitlines()[1] == f"Best: {done.best}"
    last = done.metrics.ffill().iloc[-1]
    shown = describe_run(done.folder)["metrics"]
    for name in ("train/loss", "val/loss", "val/accuracy", "test/loss"):
        assert shown[name] == last[name]
        assert name in out


def test_show_says_which_metrics_are_of_an_earlier_report(tmp_path: Path) -> None:
    done = run(described(epochs=2), tmp_path, "points", local=True)
    (last,) = done.folder.read_current_reports()[-1:]
    cut = {name: value for name, value in last.items() if not name.startswith("val/")}
    done.folder.append_report({**cut, "epoch": 2, "step": last["step"] + 1, "train/loss": 0.125})
    lines = CliRunner().invoke(app, ["show", str(done.path)]).stdout.splitlines()
    (value,) = [line for line in lines if line.startswith("val/loss ")]
    assert value.endswith(f" (epoch 2, step {last['step']})")
    (loss,) = [line for line in lines if line.startswith("train/loss ")]
    assert loss.split() == ["train/loss", "0.125"]


def test_more_training_is_not_offered_for_a_run_that_has_diverged(tmp_path: Path) -> None:
    hooks = {"checkpoint": {"every": 1, "best": "val/accuracy"}}
    done = run(described(epochs=2, hooks=hooks), tmp_path, "points", local=True)
    (last,) = done.folder.read_current_reports()[-1:]
    diverged = {**last, "iteration": last["iteration"] + 1, "epoch": 2, "train/loss": float("nan")}
    done.folder.append_report(diverged)
    change(done.folder, diverged="train/loss is NaN since epoch 3")
    shown = CliRunner().invoke(app, ["show", str(done.path)]).stdout
    assert "use it: " in shown
    assert "longer" not in shown
    resumed = CliRunner().invoke(app, ["resume", str(done.path)])
    assert resumed.exit_code == 2
    assert "but diverged: train/loss is NaN since epoch 3. Change the" in resumed.stderr
    with pytest.raises(UsageError) as taken:
        run(described(epochs=2), tmp_path, "points", local=True)
    assert "longer" not in str(taken.value)


def test_advice_on_one_time_costs_does_not_suggest_an_interval() -> None:
    rows = pd.DataFrame(
        {
            "rank": 0,
            "phase": "train",
            "epoch": 0,
            "iteration": range(1, 101),
            "step_s": 0.01,
            "forward_s": 0.01,
        }
    )
    for event in ("on_start", "on_end", "on_step"):
        costs = pd.DataFrame(
            {"rank": [0], "hook": ["slow"], "event": [event], "calls": [1], "seconds": [0.5]}
        )
        (found,) = [finding for finding in diagnose(rows, costs).findings if finding.kind == "hook"]
        assert ("less often" in found.advice or "every" in found.advice) == (event == "on_step")


def test_follower_has_the_speed_of_its_leader(tmp_path: Path) -> None:
    space = {"hooks.ema.decay": {"fan_out": [0.5, 0.9]}}
    asked = {"metric": "val/accuracy", "mode": "max", "search": "grid", "space": space}
    trials = sweep(
        described(epochs=1, hooks={"ema": {}}, sweep=asked), tmp_path, "swept", local=True
    ).trials
    leader, follower = trials.sort_values("train_s").index
    assert trials["leader"].tolist() == [leader] * 2
    for name in ("step_s", "samples_per_s", "data_wait_share"):
        assert trials.loc[follower, name] == trials.loc[leader, name]
    assert pd.isna(trials.loc[follower, "train_s"])

"""The verbs run, resume, ls, show, stats and sweep, as a user calls them, in one process."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from orchestrator import open_sweep
from orchestrator.cli import app

TASK = """
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

from orchestrator import Task


@dataclass
class Line(Task):
    def model(self):
        return nn.Linear(2, 1)

    def data(self):
        points = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(points, points.sum(1, keepdim=True))
        return {"train": data, "val": data}

    def loss(self, output, batch):
        return nn.functional.mse_loss(output, batch[1])
"""

EXPERIMENT = """
name: line
task: a_line:Line
epochs: 2
batch_size: 8
optimizer: {type: SGD, lr: 0.1}
"""

SWEEP = """
base: line.yaml
name: lines
sweep:
  metric: val/loss
  mode: min
  search: grid
  space:
    optimizer.lr: {choice: [0.0, 0.1]}
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {"a_line.py": TASK, "line.yaml": EXPERIMENT, "lines.yaml": SWEEP}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def data(*arguments: str) -> Any:
    done = call(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_run_ls_show_and_stats(study: Path) -> None:
    done = data("run", "line.yaml", "--local", "--name", "first")
    assert done["status"] == "finished"
    assert done["metrics"]["step"] == 6
    assert [(entry["name"], entry["kind"], entry["status"]) for entry in data("ls")] == [
        ("first", "run", "finished")
    ]
    assert data("show", "runs/first")["metrics"]["val/loss"] == done["metrics"]["val/loss"]
    assert [row["rows"] for row in data("stats", "runs/first", "--by", "rank")] == [6]
    assert {row["phase"]: row["rows"] for row in data("stats", "runs/first", "--by", "phase")} == {
        "train": 6,
        "val": 6,
    }
    saves = [
        row
        for row in data("stats", "runs/first", "--by", "hook")
        if (row["hook"], row["event"]) == ("(loop)", "save")
    ]
    assert [row["calls"] for row in saves] == [2]
    assert {"loss", "step_s", "rss_bytes"} <= {row["column"] for row in data("stats", "runs/first")}
    for arguments in (("ls",), ("show", "runs/first"), ("stats", "runs/first")):
        assert call(*arguments).exit_code == 0


def test_taken_name_is_refused_numbered_or_replaced(study: Path) -> None:
    again = ("run", "line.yaml", "--local")
    assert data(*again)["name"] == "line"
    refused = call(*again)
    assert refused.exit_code == 2
    longer = f"To train it longer: hookyard run {Path('runs/line').resolve()}@last epochs=4"
    assert f"runs/line exists and has finished. {longer}\n" in refused.stderr
    assert "hookyard resume" not in refused.stderr
    planned = data(*again, "--if-exists", "number", "--plan")
    assert (planned["path"], planned["config"]["name"]) == ("runs/line-2", "line-2")
    assert data(*again, "--if-exists", "number")["name"] == "line-2"
    assert data(*again, "--if-exists", "replace")["name"] == "line"
    assert [entry["name"] for entry in data("ls")] == ["line-2", "line"]
    swept = ("sweep", "lines.yaml", "--local", "--name", "line")
    assert data(*swept, "--if-exists", "number")["path"].endswith("runs/line-3")
    assert data(*swept, "--if-exists", "replace")["path"].endswith("runs/line")
    assert call(*again, "--if-exists", "overwrite").exit_code == 2


@pytest.mark.parametrize("out_dir", ["null", "elsewhere"])
def test_show_lists_checkpoints_in_any_folder(study: Path, out_dir: str) -> None:
    best = [
        "hooks.checkpoint.best=val/loss",
        "hooks.checkpoint.publish=[model]",
        f"hooks.checkpoint.out_dir={out_dir}",
    ]
    assert (
        call(
            "run",
            "line.yaml",
            "--local",
            "--name",
            "first",
            "epochs=2",
            "hooks.checkpoint.every=2 steps",
            *best,
        ).exit_code
        == 0
    )
    folder = study / ("elsewhere/first" if out_dir == "elsewhere" else "runs/first/checkpoints")
    assert (folder / "published").is_dir()
    there = [path.name for path in folder.iterdir() if path.name not in ("published", "index.json")]
    shown = data("show", "runs/first")["checkpoints"]
    assert sorted(shown) == sorted(there)
    assert shown[-1] == "epoch-0002"


def test_failed_run_exits_with_1_and_its_reason(study: Path) -> None:
    (study / "a_wrong_line.py").write_text(
        TASK.replace("mse_loss(output, batch[1])", "mse_loss(output, batch[2])")
    )
    failed = call("run", "line.yaml", "task=a_wrong_line:Line", "--local")
    assert failed.exit_code == 1
    reason, place = failed.stderr.splitlines()[-2:]
    assert "IndexError" in reason
    assert place == f"The traceback is in {study}/runs/line/log.txt"
    assert data("show", "runs/line")["status"] == "failed"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "hooks.checkpoint={best: val/error}",
            "hooks.checkpoint.best: there is no metric 'val/error'; available: train/loss, val/loss",
        ),
        (
            "hooks.freeze_parameters={patterns: wieght}",
            "hooks.freeze_parameters.patterns: pattern 'wieght' matches no parameter; did you mean weight?",
        ),
        ("task=wrong_loss:Line", "loss() returns 0.5; expected a scalar tensor"),
        ("task=wrong_data:Line", "data() returns a tuple; expected"),
    ],
)
def test_wrong_experiment_found_in_training_exits_with_2(
    study: Path, override: str, message: str
) -> None:
    (study / "wrong_loss.py").write_text(TASK.replace("return nn.functional", "return 0.5 #"))
    (study / "wrong_data.py").write_text(TASK.replace('{"train": data, "val": data}', "data, data"))
    failed = call("run", "line.yaml", override, "--local")
    assert failed.exit_code == 2
    assert message in failed.stderr
    assert "rank 0" not in failed.stderr
    assert data("show", "runs/line")["status"] == "failed"


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to train on")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run line.yaml --plan --name ../esc", "name '../esc' must contain only letters"),
        (
            "run lines.yaml --plan",
            "lines.yaml has a `sweep` section; use hookyard sweep lines.yaml",
        ),
        (
            "sweep line.yaml --plan",
            "line.yaml has no `sweep` section; add one, or use `hookyard run line.yaml`",
        ),
        (
            "sweep lines.yaml --local sweep.metric=stats/step_s/p59",
            "no statistic 'p59' in 'step_s/p59': did you mean",
        ),
        pytest.param(
            "run line.yaml --local workers.gpu=true", "set workers.gpu=false", marks=NO_GPU
        ),
        pytest.param(
            "sweep lines.yaml --local workers.gpu=true", "set workers.gpu=false", marks=NO_GPU
        ),
    ],
)
def test_wrong_usage_starts_nothing(study: Path, words: str, said: str) -> None:
    refused = call(*words.split())
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert not (study / "runs").exists() or not list((study / "runs").iterdir())
    assert data("run", "line.yaml", "--plan")["config"]["optimizer"]["lr"] == 0.1
    assert not (study / "runs").exists() or not list((study / "runs").iterdir())


def test_show_summarizes_a_sweep(study: Path) -> None:
    rates = (
        "sweep.space={optimizer.lr: {grid: [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1]}, seed: {choice:"
        " [0]}}"
    )
    assert call("sweep", "lines.yaml", "--local", "epochs=1", rates).exit_code == 0
    shown = data("show", "runs/lines")
    assert shown["counts"] == {"finished": 10}
    assert shown["trials"][0]["config/optimizer.lr"] == 0.1, "the best comes first"
    assert [entry["kind"] for entry in data("ls")] == ["sweep"]
    assert shown["best"] == str(study / "runs/lines/trials/trial-0009")
    assert shown["value"] == min(trial["val/loss"] for trial in shown["trials"])
    assert shown["importance"] == {"optimizer.lr": 1.0, "seed": 0.0}
    assert shown["pareto"] == []
    assert {trial["error"] for trial in shown["trials"]} == {None}
    printed = call("show", "runs/lines").stdout
    first, second, *_ = printed.splitlines()
    assert first.endswith("finished, 10 trials: 10 finished")
    assert second.startswith("Best: trial-0009, ")
    assert shown["importance_std_error"] == {"optimizer.lr": 0.0, "seed": 0.0}
    assert "Parameter importance for val/loss: optimizer.lr 100% ± 0%, seed 0% ± 0%" in printed


def test_trial_can_be_run_again_from_its_yaml(study: Path) -> None:
    assert call("sweep", "lines.yaml", "--local").exit_code == 0
    trial = data("show", "runs/lines", "--trial", "1")
    assert trial["name"] == "trial-0001"
    (study / "again.yaml").write_text(call("show", "runs/lines", "--trial", "1", "--yaml").stdout)
    again = data("run", "again.yaml", "--local")
    assert again["name"] == "lines-trial-0001"
    assert again["metrics"]["val/loss"] == trial["metrics"]["val/loss"]
    assert (
        call("show", "runs/lines/trials/trial-0001", "--yaml").stdout
        == (study / "runs/lines/trials/trial-0001/experiment.yaml").read_text()
    )
    assert (
        data("show", "runs/lines", "--trial", "best")["name"]
        == open_sweep(study / "runs/lines").best.name
    )
    missing = call("show", "runs/lines", "--trial", "9")
    assert missing.exit_code == 2
    assert "has no trial 'trial-0009'" in missing.stderr
    assert (
        "has no trial '../trials/trial-0001'"
        in call("show", "runs/lines", "--trial", "../trials/trial-0001").stderr
    )
    no_sweep = call("show", "runs/lines-trial-0001", "--trial", "0")
    assert (no_sweep.exit_code, no_sweep.stderr) == (
        2,
        f"{Path('runs/lines-trial-0001').absolute()} is a single run; --trial is for sweeps\n",
    )


def test_show_prints_the_pareto_front_of_several_metrics(study: Path) -> None:
    pytest.importorskip("optuna")
    metrics = [
        "sweep.metric=[val/loss, stats/step_s/median]",
        "sweep.search=optuna",
        "sweep.trials=3",
        "epochs=1",
    ]
    assert call("sweep", "lines.yaml", "--local", *metrics).exit_code == 0
    shown = data("show", "runs/lines")
    points = {
        trial["trial"]: (trial["val/loss"], trial["stats/step_s/median"])
        for trial in shown["trials"]
    }
    beaten = {
        name
        for name, (loss, s) in points.items()
        if any((a <= loss and b <= s and (a, b) != (loss, s)) for a, b in points.values())
    }
    assert sorted(shown["pareto"]) == sorted(set(points) - beaten)
    assert "Pareto front of val/loss, stats/step_s/median" in call("show", "runs/lines").stdout


def test_prints_of_a_task_go_to_stderr(study: Path) -> None:
    """By a task, or by Ray, which tells of dead workers on stdout."""
    (study / "talks.py").write_text(
        "from dataclasses import dataclass\nfrom hooks import Hook\n\n\n@dataclass\nclass Talks(Hook):\n"
        "    'Prints.'\n    def on_start(self, state):\n        print('by the way')\n"
    )
    for verb, file in (("run", "line.yaml"), ("sweep", "lines.yaml")):
        done = call(verb, file, "--local", "--json", "hooks.talks={type: 'talks:Talks'}")
        assert json.loads(done.stdout)["status"] == "finished"
        assert "by the way" in done.stderr


@pytest.mark.parametrize(("verb", "file"), [("run", "line.yaml"), ("sweep", "lines.yaml")])
def test_next_commands_are_for_people(study: Path, verb: str, file: str) -> None:
    assert "Next:" in call(verb, file, "--local").stderr
    assert "Next:" not in call(verb, file, "--local", "--json", "name=again").stderr


def test_sweep_whose_trials_all_failed_has_not_succeeded(study: Path) -> None:
    """An error has several lines, and its cell one."""
    (study / "fails.py").write_text(
        TASK.replace(
            "return nn.functional.mse_loss(output, batch[1])", "raise ValueError('one\\ntwo')"
        )
    )
    done = call("sweep", "lines.yaml", "task=fails:Line", "--local")
    assert done.exit_code == 3
    first, *_ = done.stdout.splitlines()
    assert first.endswith("runs/lines: ended without success, 2 trials: 2 failed")
    assert "one two" in done.stdout
    assert "\\n" not in done.stdout


def test_sweep_with_a_failed_trial_exits_with_3(study: Path) -> None:
    (study / "mishap.py").write_text(
        "from dataclasses import dataclass\nfrom hooks import Hook\n\n\n@dataclass\nclass Mishap(Hook):\n   "
        " 'Raises.'\n    at: float = 0.0\n    def on_start(self, state):\n        if self.at:\n            raise"
        " ValueError('mishap')\n"
    )
    space = "sweep.space={hooks.mishap.at: {choice: [0.0, 1.0]}}"
    overrides = ["hooks.mishap={type: 'mishap:Mishap'}", space, "sweep.max_concurrent=2"]
    done = call("sweep", "lines.yaml", "--local", *overrides)
    assert done.exit_code == 3
    assert "sweep.max_concurrent: has no effect in a local sweep" in done.stderr

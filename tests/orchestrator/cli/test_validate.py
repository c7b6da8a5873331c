"""`hookyard validate`."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator import open_run
from orchestrator.cli import app
from orchestrator.experiment.make_hooks import DEFAULT_HOOKS
from tests.orchestrator.experiment.samples import HERE

TEXT = f"name: line\ntask: {HERE}:Line\nepochs: 1\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line.yaml").write_text(TEXT)
    return str(tmp_path / "line.yaml")


def test_validate_accepts_a_valid_file(file: str) -> None:
    result = CliRunner().invoke(app, ["validate", file, "seed=3"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "line.yaml is valid" in result.stderr


def test_validate_prints_a_command_that_runs_one_step(file: str, tmp_path: Path) -> None:
    validated = CliRunner().invoke(app, ["validate", file, "seed=3"])
    _, _, command = validated.stderr.rpartition("To run one step: hookyard ")
    done = CliRunner().invoke(app, [*shlex.split(command), "--storage", str(tmp_path)])
    assert done.exit_code == 0
    run = open_run(tmp_path / "one_step")
    assert (run.config["seed"], run.metrics["step"].max()) == (3, 1)


def test_validate_warns_of_a_hook_that_never_begins(
    file: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = CliRunner().invoke(app, ["validate", file, "hooks.ema.begin=7"])
    assert result.exit_code == 0
    assert caplog.messages == [
        "hooks.ema.begin: 7 epochs is never reached, because the run ends after 1 epoch"
    ]


@pytest.mark.parametrize(
    ("hooks", "count"),
    [("{ema: {}}", "1 hook"), ("{ema: {}, throughput: {}}", "2 hooks")],
)
def test_hooks_are_counted(file: str, hooks: str, count: str) -> None:
    defaults = [f"hooks.{name}=null" for name in DEFAULT_HOOKS]
    result = CliRunner().invoke(app, ["validate", file, f"hooks={hooks}", *defaults])
    assert result.stderr.splitlines()[0] == f"{file} is valid: line, {HERE}:Line, {count}"


def test_every_interval_is_shown_with_its_unit(file: str) -> None:
    given = [
        "task=tests.tasks:Points",
        "hooks.ema.every=3",
        "hooks.console.every=7",
        "hooks.checkpoint.every=2",
        "validate_every=4 steps",
    ]
    result = CliRunner().invoke(app, ["validate", file, *given])
    shown = [line.strip() for line in result.stderr.splitlines()]
    assert shown[1:-2] == [
        "validate_every: 4 steps",
        "hooks.console.every: 7 iterations",
        "hooks.checkpoint.every: 2 epochs",
        "hooks.ema.every: 3 steps",
    ], "no interval that nobody wrote"


def test_validate_finds_unset_variables_and_missing_initial_weights(file: str) -> None:
    given = ["environment=[HOOKYARD_UNSET, HOME]", "init.from=runs/nobody@best"]
    result = CliRunner().invoke(app, ["validate", file, *given])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "environment: HOOKYARD_UNSET is not set; export it, or remove it",
        "init.from: no such run or file: runs/nobody@best; expected a file, a run's folder, or its checkpoint such as"
        " runs/NAME@best",
    ]
    listed = CliRunner().invoke(app, ["validate", file, *given, "--json"])
    paths = [problem["path"] for problem in json.loads(listed.stdout)["problems"]]
    assert paths == ["environment", "init.from"]


def test_validate_finds_a_missing_sweep_that_the_search_continues(file: str) -> None:
    Path(file).write_text(
        TEXT
        + "sweep: {metric: train/loss, mode: min, trials: 3, search: {type: optuna, from: runs/nobody},"
        + " space: {seed: {choice: [1, 2]}}}\n"
    )
    result = CliRunner().invoke(app, ["validate", file])
    assert result.exit_code == 2
    missing = Path(file).with_name("runs") / "nobody"
    assert result.stderr.startswith(f"sweep.search.from: {missing} is not a run: it does not exist")


def test_a_file_that_does_not_exist_has_a_nearest_name(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = Path(file).with_name("lime.yaml")
    result = CliRunner().invoke(app, ["validate", str(near)])
    meant = f"did you mean '{Path(file).name}'?"
    assert (result.exit_code, result.stderr) == (2, f"{near}: does not exist ({meant})\n")
    near.write_text("base: lin.yaml\n")
    result = CliRunner().invoke(app, ["validate", str(near)])
    missing = near.with_name("lin.yaml")
    assert result.stderr.splitlines()[0] == f"{near}:1: base: {missing} does not exist ({meant})"


def test_validate_prints_every_problem(file: str) -> None:
    result = CliRunner().invoke(app, ["validate", file, "seed=x", "epoch=1"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "override 'seed=x': seed: must be an integer, got 'x'",
        "override 'epoch=1': epoch: unknown key (did you mean 'epochs'?)",
    ]


def test_json(file: str) -> None:
    right = CliRunner().invoke(app, ["validate", file, "--json"])
    assert (right.exit_code, json.loads(right.stdout)) == (0, {"ok": True, "problems": []})
    Path(file).write_text(TEXT + "epoch: 2\n")
    wrong = CliRunner().invoke(app, ["validate", file, "--json"])
    assert wrong.exit_code == 2
    assert json.loads(wrong.stdout)["problems"] == [
        {
            "path": "epoch",
            "message": "unknown key",
            "file": file,
            "line": 4,
            "suggestion": "did you mean 'epochs'?",
            "code": "unknown_key",
            "meant": "epochs",
        }
    ]


BROKEN = {
    "raises": "raise OSError('no such disk')",
    "not a mapping": "return [1, 2]",
    "no train": "return {'val': [(torch.zeros(2), 0)]}",
    "train is empty": "return {'train': []}",
    "val is empty": "return {'train': FULL, 'val': []}",
    "an unused test is empty": "return {'train': FULL, 'test': []}",
    "a stream is empty": "return {'train': Stream(0)}",
    "a stream of val is empty": "return {'train': FULL, 'val': Stream(0)}",
    "no data set": "return {'train': 5}",
    "an unknown phase": "return {'train': FULL, 'valid': FULL}",
    "a sample raises": "return {'train': FULL, 'val': Unreadable()}",
    "a stream raises": "return {'train': FULL, 'val': Stream(1, fails=True)}",
}
WHOLE = {
    "map-style": "return {'train': FULL, 'val': FULL}",
    "streams": "return {'train': Stream(3), 'val': Stream(2)}",
}
MODULE = """
import torch
from torch import nn
from torch.utils.data import IterableDataset
from orchestrator import Task

FULL = [(torch.zeros(2), 0), (torch.ones(2), 1)]

class Stream(IterableDataset):
    def __init__(self, count, fails=False):
        self.count, self.fails = count, fails
    def __iter__(self):
        if self.fails:
            raise OSError("the link is down")
        return iter([FULL[0]] * self.count)

class Unreadable:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        raise OSError("the file is gone")

class Given(Task):
    def model(self):
        return nn.Linear(2, 2)
    def loss(self, output, batch):
        return nn.functional.cross_entropy(output, batch[1])
    def data(self):
        BODY
"""


@pytest.mark.parametrize("body", [*BROKEN.values(), *WHOLE.values()], ids=[*BROKEN, *WHOLE])
def test_validate_refuses_exactly_the_data_that_fail_in_a_run(
    tmp_path: Path, body: str, request: pytest.FixtureRequest
) -> None:
    module = f"given_{re.sub('[^a-z]', '_', request.node.callspec.id)}"
    (tmp_path / f"{module}.py").write_text(MODULE.replace("BODY", body))
    file = tmp_path / "given.yaml"
    file.write_text(f"name: given\ntask: {module}:Given\nsteps: 1\nbatch_size: 1\n")
    result = CliRunner().invoke(app, ["validate", str(file)])
    trained = CliRunner().invoke(
        app, ["run", str(file), "--local", "--storage", str(tmp_path / "runs")]
    )
    assert (result.exit_code, result.stdout) == (2 if trained.exit_code else 0, "")
    assert (body in BROKEN.values()) == (result.exit_code == 2)
    if result.exit_code:
        assert f"{file}:2: task: " in result.stderr
        assert "is valid" not in result.stderr

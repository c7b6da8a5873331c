"""Loading: a file, its base, overrides and a sweep become one checked experiment, or every problem at once."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hooks.rhythm import Rhythm
from orchestrator.config.components import DEFAULT_HOOKS, build_hooks, build_task
from orchestrator.config.experiment import Experiment
from orchestrator.config.load import experiment_from_dict, load_experiment, resolved, to_yaml, with_overrides
from orchestrator.config.reader import parse_yaml
from orchestrator.errors import ConfigError, Problem
from tests.orchestrator.config.samples import HERE, Band, Line, Shadow
from tests.tasks import described

SHIPPED = Path(__file__).parents[3] / "experiments"

TEXT = f"""\
name: line
task: {HERE}:Line
task_args: {{width: 2}}
epochs: 3
optimizer: {{type: SGD, lr: 1e-1, momentum: 0.5}}
hooks:
  shadow:
    type: {HERE}:Shadow
    decay: 0.25
  console: null
"""


@pytest.fixture(autouse=True)
def import_path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "line.yaml").write_text(TEXT)
    return tmp_path / "line.yaml"


def problems(file: Path, text: str, *overrides: str) -> list[Problem]:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_experiment(file, overrides)
    return list(caught.value.problems)


def places(file: Path, text: str, *overrides: str) -> dict[str, int | None]:
    return {problem.path: problem.line for problem in problems(file, text, *overrides)}


def sweep_problems(file: Path, space: str, search: str = "random") -> list[tuple[str, int | None, str]]:
    text = f"base: line.yaml\nsweep:\n  metric: val/loss\n  search: {search}\n  space:\n"
    other = file.parent / "sweep.yaml"
    text += "".join(f"    {line}\n" for line in space.splitlines())
    return [(p.path.removeprefix("sweep.space."), p.line, p.message) for p in problems(other, text)]


# What is right


def test_a_file_becomes_an_experiment(file: Path) -> None:
    experiment = load_experiment(file)
    assert (experiment.name, experiment.epochs, experiment.steps, experiment.sweep) == ("line", 3, None, None)
    assert experiment.optimizer.arguments == {"lr": 0.1, "momentum": 0.5}
    assert experiment.validate_every == Rhythm(1)
    assert build_task(experiment) == Line(width=2)
    assert list(experiment.hooks) == [*DEFAULT_HOOKS, "shadow"]
    assert experiment.hooks["console"] is None
    hooks = build_hooks(experiment, Line())
    assert hooks["shadow"] == Shadow(decay=0.25)
    assert "console" not in hooks


def test_overrides_are_laid_over_it(file: Path) -> None:
    experiment = load_experiment(file, ["hooks.shadow.decay=1", "epochs=null", "steps=7", "hooks.console=true"])
    assert (experiment.epochs, experiment.steps) == (None, 7)
    assert build_hooks(experiment, Line())["shadow"] == Shadow(decay=1)
    assert experiment.hooks["console"]


def test_a_key_without_a_value_takes_its_default(file: Path) -> None:
    file.write_text(TEXT.split("hooks:")[0] + "hooks:\nscheduler:\n")
    experiment = load_experiment(file, ["optimizer=null"])
    assert list(experiment.hooks) == list(DEFAULT_HOOKS)
    assert (experiment.scheduler, experiment.optimizer.type) == (None, "SGD")


@pytest.mark.parametrize(
    ("override", "type_", "arguments"),
    [
        ("seed=0", "SGD", {"lr": 0.1}),
        ("optimizer.momentum=0.5", "SGD", {"lr": 0.1, "momentum": 0.5}),
        ("optimizer.type=Adam", "Adam", {}),
    ],
)
def test_the_default_optimizer_can_be_refined(file: Path, override: str, type_: str, arguments: dict[str, Any]) -> None:
    file.write_text(f"name: x\ntask: {HERE}:Line\nepochs: 1\n")
    optimizer = load_experiment(file, [override]).optimizer
    assert (optimizer.type, optimizer.arguments) == (type_, arguments)


def test_import_paths_are_the_file_s_folder_and_the_current_one(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    (file.parent / "beside_the_file.py").write_text(f"from {HERE} import Line as Beside\n")
    (elsewhere / "where_it_was_called.py").write_text(f"from {HERE} import Shadow as Here\n")
    overrides = ["task=beside_the_file:Beside", "hooks.here={type: 'where_it_was_called:Here'}"]
    experiment = load_experiment(file, overrides)
    assert experiment.import_paths == (str(file.parent), str(elsewhere))
    assert sys.path[-2:] == list(experiment.import_paths)


def test_required_hooks_come_with_the_task(file: Path) -> None:
    experiment = load_experiment(file, [f"task={HERE}:Choosy"])
    assert build_hooks(experiment, build_task(experiment))["shadow"] == Shadow(decay=0.25, keep=7)


# There and back


def test_the_resolved_text_gives_an_equal_experiment(file: Path) -> None:
    overrides = [
        "hooks.band={type: '" + HERE + ":Band', low: -.inf, high: 1e-5, priority: low}",
        "hooks.shadow.tags=['on', '1e-3', '2024-01-01', '']",
        "hooks.shadow.every=100 steps",
        "hooks.perf_stats=false",
    ]
    experiment = load_experiment(file, overrides)
    again = file.parent / "again.yaml"
    again.write_text(to_yaml(experiment))
    reloaded = load_experiment(again)
    assert reloaded == experiment
    assert to_yaml(reloaded) == to_yaml(experiment)
    assert list(reloaded.hooks) == list(experiment.hooks)
    assert build_hooks(reloaded, Line()) == build_hooks(experiment, Line())
    assert build_hooks(reloaded, Line())["band"].priority == 70


def test_everything_is_filled_in(file: Path) -> None:
    data = resolved(load_experiment(file))
    assert data["task_args"] == {"width": 2, "scale": 1.0}
    assert data["hooks"]["shadow"] == {
        "type": f"{HERE}:Shadow", "decay": 0.25, "every": "1 epoch", "keep": 3, "mode": "near", "tags": []
    }  # fmt: skip
    assert data["hooks"]["console"] is None
    assert set(data) == set(Experiment.model_fields)
    assert yaml.safe_load(yaml.safe_dump(data)) == data


def test_a_worker_builds_it_from_plain_data(file: Path) -> None:
    experiment = load_experiment(file)
    received = experiment_from_dict(pickle.loads(pickle.dumps(resolved(experiment))), experiment.import_paths)
    assert received == experiment
    assert received.import_paths == experiment.import_paths


def test_a_worker_is_told_what_is_wrong_too(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"hooks\.shadow\.decay: must be at most 1, got 2"):
        experiment_from_dict(
            {**resolved(load_experiment(file)), "hooks": {"shadow": {"type": f"{HERE}:Shadow", "decay": 2}}}
        )


# What is wrong


def test_every_problem_at_once_with_its_line(file: Path) -> None:
    text = f"""\
name: a/b
task: {HERE}:Line
task_args: {{widht: 2}}
epochs: 0
batchsize: 8
optimizer: {{type: SGD, lr: '0.1'}}
scheduler: {{type: CosineAnnealingLR, T_Max: 3}}
precision: fp8
workers: {{count: 1.5}}
hooks:
  shadow: {{type: '{HERE}:Shadow', decay: 1.2}}
  band:
    type: {HERE}:Band
    low: 2
    high: 1
  ema:
    decoy: 1
  emma: {{}}
epochs: 4
"""
    assert places(file, text) == {
        "name": 1, "task_args.widht": 3, "epochs": 19, "batchsize": 5, "optimizer.lr": 6, "scheduler.T_Max": 7,
        "scheduler.T_max": 7, "precision": 8, "workers.count": 9, "hooks.shadow.decay": 11, "hooks.band": 12,
        "hooks.ema.decoy": 17, "hooks.emma": 18,
    }  # fmt: skip
    told = "\n".join(map(str, problems(file, text)))
    assert f"{file}:5: batchsize: unknown key (did you mean 'batch_size'?)" in told
    assert f"{file}:11: hooks.shadow.decay: must be at most 1, got 1.2" in told
    assert f"{file}:18: hooks.emma: there is no hook 'emma'" in told
    assert f"{file}:3: task_args.widht: unknown key (did you mean 'width'?)" in told


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["steps=3"], "has both epochs and steps"),
        (["epochs=null"], "has neither epochs nor steps"),
        (["epochs=null", "precision=fp8"], "has neither epochs nor steps"),
        (["steps=3", "workers.count=0"], "has both epochs and steps"),
    ],
)
def test_the_length_is_said_once(file: Path, overrides: list[str], said: str) -> None:
    found = [problem.message for problem in problems(file, TEXT, *overrides) if not problem.path]
    assert len(found) == 1
    assert said in found[0]


def test_missing_keys(file: Path) -> None:
    assert places(file, "epochs: 1\n") == {"name": 1, "task": 1}


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("hooks: [ema]", "hooks"),
        ("hooks: {ema: 3}", "hooks.ema"),
        ("optimizer: SGD", "optimizer"),
        ("optimizer: {lr: x}", "optimizer.lr"),
        ("optimizer: {type: 3}", "optimizer.type"),
        ("scheduler: {gamma: 1}", "scheduler.type"),
        ("task_args: 3", "task_args"),
        ("task: 3", "task"),
        ("workers: 2", "workers"),
        ("accumulate: true", "accumulate"),
        ("seed: '0'", "seed"),
        ("validate_every: 1 hour", "validate_every"),
        ("loader: {num_workers: -1}", "loader.num_workers"),
        ("sweep: {metric: x}", "sweep.space"),
        ("sweep: 3", "sweep"),
        ("name: on the moon", "name"),
    ],
)
def test_wrong_shapes_are_one_problem_each(file: Path, line: str, path: str) -> None:
    key = line.partition(":")[0]
    lines = {"name": "name: x", "task": f"task: {HERE}:Line", "epochs": "epochs: 1", key: line}
    assert list(places(file, "\n".join(lines.values()))) == [path]


def test_problems_of_an_override_name_it(file: Path) -> None:
    (problem,) = problems(file, TEXT, "hooks.shadow.decay=1.2")
    assert str(problem) == "override 'hooks.shadow.decay=1.2': hooks.shadow.decay: must be at most 1, got 1.2"


def test_duplicates_and_the_rest_together(file: Path) -> None:
    assert places(file, TEXT + "name: again\nbatchsize: 3\n") == {"name": 11, "batchsize": 12}


# A base


def test_a_file_is_laid_over_its_base(file: Path) -> None:
    other = file.parent / "deeper" / "other.yaml"
    other.parent.mkdir()
    other.write_text(
        "base: ../line.yaml\nname: other\nhooks:\n  shadow: {keep: 5}\noptimizer: {lr: 0.5}\nscheduler: {type: ConstantLR}\n"
    )
    experiment = load_experiment(other)
    assert (experiment.name, experiment.epochs) == ("other", 3)
    assert experiment.optimizer.arguments == {"lr": 0.5, "momentum": 0.5}
    assert build_hooks(experiment, Line())["shadow"] == Shadow(decay=0.25, keep=5)
    assert experiment.import_paths[:2] == (str(other.parent), str(file.parent))


def test_another_type_replaces_the_base_s(file: Path) -> None:
    other = file.parent / "other.yaml"
    other.write_text("base: line.yaml\noptimizer: {type: Adam}\nhooks: {shadow: null}\n")
    experiment = load_experiment(other)
    assert (experiment.optimizer.type, experiment.optimizer.arguments) == ("Adam", {})
    assert "shadow" not in build_hooks(experiment, Line())


def test_problems_point_at_the_file_they_are_in(file: Path) -> None:
    file.write_text(TEXT.replace("0.25", "2"))
    found = problems(file.parent / "other.yaml", "base: line.yaml\nhooks:\n  shadow: {keep: x}\n")
    assert [(Path(str(p.file)).name, p.line, p.path) for p in found] == [
        ("line.yaml", 9, "hooks.shadow.decay"),
        ("other.yaml", 3, "hooks.shadow.keep"),
    ]


@pytest.mark.parametrize(
    ("base", "said"),
    [("nope.yaml", "there is no file"), ("[a]", "must be a file"), ("other.yaml", "no base of its own")],
)
def test_wrong_bases(file: Path, base: str, said: str) -> None:
    (problem,) = problems(file.parent / "other.yaml", f"name: x\nbase: {base}\n")
    assert said in problem.message
    assert (problem.path, problem.line) == ("base", 2)


# A sweep


def test_a_sweep_is_an_experiment_with_a_space(file: Path) -> None:
    other = file.parent / "sweep.yaml"
    space = "{hooks.shadow.decay: {choice: [0, 1]}, optimizer.lr: {loguniform: [1e-3, 1]}, task_args.width: {randint: [1, 9]}}"
    other.write_text(
        f"base: line.yaml\nname: wide\nsweep: {{metric: val/loss, mode: min, trials: 4, space: {space}}}\n"
    )
    experiment = load_experiment(other)
    assert experiment.name == "wide"
    assert experiment.sweep is not None
    assert experiment.sweep.space["hooks.shadow.decay"] == {"choice": [0, 1]}
    again = file.parent / "again.yaml"
    again.write_text(to_yaml(experiment))
    assert load_experiment(again) == experiment


@pytest.mark.parametrize(
    "line",
    [
        "hooks.shadow.decay: {uniform: [0, 1]}",
        "hooks.shadow.every: {choice: [1, 100 steps]}",
        "hooks.shadow: {choice: [null, false, {type: '" + HERE + ":Shadow', decay: 1}]}",
        "hooks.perf_stats: {choice: [true, false]}",
        "hooks.checkpoint.keep: {randint: [1, 5]}",
        "hooks.console: {choice: [true, null]}",
        "optimizer.weight_decay: {loguniform: [1e-6, 1e-2]}",
        "optimizer: {choice: [{type: SGD}, {type: Adam}]}",
        "optimizer.type: {choice: [SGD, RMSprop]}",
        "batch_size: {choice: [16, 32]}",
        "precision: {grid: [fp32, bf16]}",
        "scheduler: {choice: [null, {type: StepLR, step_size: 1}]}",
        "hooks.band: {choice: [null, {type: '" + HERE + ":Band', low: 0, high: 1}]}",
    ],
)
def test_spaces_that_fit(file: Path, line: str) -> None:
    other = file.parent / "sweep.yaml"
    other.write_text(f"base: line.yaml\nsweep:\n  metric: val/loss\n  space:\n    {line}\n")
    assert load_experiment(other).sweep is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hooks.shadow.decay: {choice: [0.5, 1.2]}", "must be at most 1, got 1.2"),
        ("hooks.shadow.decay: {uniform: [-0.1, 1]}", "must be at least 0, got -0.1"),
        ("hooks.shadow.decay: {normal: [0.5, 0.25, -0.25, 1]}", "must be at least 0, got -0.25"),
        ("hooks.shadow.keep: {uniform: [1, 5]}", "must be a whole number, got 1"),
        ("hooks.shadow.decoy: {uniform: [0, 1]}", "unknown key"),
        ("hooks.shadow: {choice: [{type: '" + HERE + ":Shadow', decay: 2}]}", "decay: must be at most 1, got 2"),
        ("hooks.shadwo.decay: {uniform: [0, 1]}", "there is no hook 'shadwo'"),
        ("optimizer.lr: {choice: ['0.1']}", "must be a number, got '0.1'"),
        ("optimizer.lr: {uniform: [-1, 1]}", "SGD refuses this: Invalid learning rate: -1.0"),
        ("optimizer.beta: {uniform: [0, 1]}", "unknown key"),
        ("optimizer.type: {choice: [SGD, Adam]}", "optimizer.momentum: unknown key"),
        ("optimizer.type.deep: {choice: [1]}", "cannot be set: optimizer.type is 'SGD', not a mapping"),
        ("task_args.width: {randint: [0, 4]}", "must be greater than 0, got 0"),
        ("batchsize: {choice: [1]}", "unknown key"),
        ("steps: {choice: [5]}", "has both epochs and steps; say one of them (epochs=null takes the other away)"),
        ("workers.count: {choice: [1, 2]}", "cannot be swept: the trials of a sweep share their workers"),
    ],
)
def test_spaces_that_do_not_fit_point_at_their_line(file: Path, line: str, message: str) -> None:
    found = sweep_problems(file, f"seed: {{choice: [1, 2]}}\n{line}")
    path, _, said = found[0]
    assert {number for _, number, _ in found} == {7}
    assert path.startswith(line.partition(":")[0])
    assert said.startswith(message)


def test_a_hook_of_the_file_s_own_is_suggested(file: Path) -> None:
    (problem,) = problems(file, TEXT, "hooks.shadwo.decay=1")
    assert problem.suggestion == "did you mean 'shadow'?"


def test_a_check_across_swept_fields_waits_for_the_trial(file: Path) -> None:
    file.write_text(TEXT + f"  band: {{type: '{HERE}:Band', low: 0, high: 1}}\n")
    other = file.parent / "sweep.yaml"
    start = "base: line.yaml\nsweep:\n  metric: x\n  space:\n    hooks.band.low: {choice: [0, 5]}\n"
    other.write_text(start + "    hooks.band.high: {choice: [6, 7]}\n")
    experiment = load_experiment(other)
    assert build_hooks(with_overrides(experiment, {"hooks.band.low": 5, "hooks.band.high": 6}), Line())["band"] == Band(
        5, 6
    )
    with pytest.raises(ConfigError, match="low must be below high"):
        with_overrides(experiment, {"hooks.band.low": 5})
    (problem,) = problems(other, start)
    assert (problem.path, problem.line) == ("sweep.space.hooks.band.low", 5)


def test_problems_of_space_and_base_come_together(file: Path) -> None:
    file.write_text(TEXT.replace("0.25", "2").replace("epochs", "epoch"))
    found = sweep_problems(file, "hooks.shadow.keep: {choice: [x]}\noptimizer.lr: {uniform: [1, 0]}")
    assert {path for path, _, _ in found} == {
        "",
        "epoch",
        "hooks.shadow.decay",
        "hooks.shadow.keep",
        "optimizer.lr.uniform",
    }


def test_grid_search_wants_points(file: Path) -> None:
    ((path, line, said),) = sweep_problems(file, "optimizer.lr: {uniform: [0, 1]}", search="grid")
    assert (path, line) == ("optimizer.lr.uniform", 6)
    assert "cannot be searched by grid" in said


# A trial


def test_a_trial_is_the_experiment_with_its_values(file: Path) -> None:
    experiment = load_experiment(file)
    values: dict[str, Any] = {
        "hooks.shadow.decay": np.float64(0.75),
        "task_args.width": np.int64(3),
        "hooks.perf_stats": None,
    }
    trial = with_overrides(experiment, values)
    assert trial.sweep is None
    assert trial.import_paths == experiment.import_paths
    assert build_hooks(trial, Line())["shadow"] == Shadow(decay=0.75)
    assert build_task(trial) == Line(width=3)
    assert type(trial.task_args["width"]) is int
    assert trial.hooks["perf_stats"] is None
    assert build_hooks(experiment, Line())["shadow"] == Shadow(decay=0.25)


def test_a_trial_is_checked(file: Path) -> None:
    experiment = load_experiment(file)
    for values in ({"hooks.shadow.decay": 1.2}, {"hooks.shadow.decoy": 1}, {"batch_size": 0}, {"seed": object()}):
        with pytest.raises(ConfigError):
            with_overrides(experiment, values)


def test_a_trial_of_another_task_loses_the_first_one_s_hooks(file: Path) -> None:
    file.write_text(TEXT.replace(":Line", ":Choosy").split("hooks:")[0])
    experiment = load_experiment(file)
    assert "shadow" in experiment.hooks
    assert "shadow" not in with_overrides(experiment, {"task": f"{HERE}:Line"}).hooks


def test_an_experiment_made_by_hand_has_trials_too() -> None:
    experiment = Experiment(name="x", task=f"{HERE}:Line", epochs=1)
    assert with_overrides(experiment, {"epochs": 2}).epochs == 2


# What ships


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_experiments_load(path: Path) -> None:
    experiment = load_experiment(path)
    assert parse_yaml(to_yaml(experiment), "x").data == resolved(experiment)


# Workers


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ({"count": [1]}, "workers.count: must be a whole number or must have at least 2 entries, got [1]"),
        ({"count": [3, 2]}, "workers: count is one number, or the fewest and the most of them, got [3, 2]"),
        ({"count": [2, 2]}, "workers: count is one number, or the fewest and the most of them, got [2, 2]"),
        ({"strategy": "zero"}, "workers.strategy: must be 'ddp' or 'fsdp', got 'zero'"),
    ],
)
def test_workers_that_cannot_be_are_refused(workers: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        described(workers=workers)
    assert str(error.value) == said


def test_the_number_of_workers_may_be_a_range_but_not_of_a_gang() -> None:
    ranged = described(workers={"count": [2, 8]})
    assert (ranged.workers.least, ranged.workers.most) == (2, 8)
    assert parse_yaml(to_yaml(ranged), "x").data["workers"]["count"] == [2, 8]
    sweep = {"metric": "val/loss", "mode": "min", "space": {"seed": {"choice": [0, 1]}}}
    with pytest.raises(ConfigError, match=r"workers.count: a gang has one number of ranks, got \[1, 2\]; engine: train takes a range"):
        described(workers={"count": [1, 2]}, sweep=sweep)
    assert described(workers={"count": [1, 2]}, sweep={**sweep, "engine": "train"}).workers.most == 2


def test_what_needs_the_whole_model_is_refused_where_ranks_share_it_out() -> None:
    hooks = {
        "export": {},
        "optimizer_stats": {},
        "ema": {"buffers": "recompute"},
        "slow_ema": {"type": "ema", "evaluate": "raw"},
        "gradient_clip": {},
    }
    described(hooks=hooks)
    with pytest.raises(ConfigError) as error:
        described(hooks=hooks, workers={"count": 2, "strategy": "fsdp"}, precision="fp16", compile=True, channels_last=True)
    wrong = {"hooks.export", "hooks.optimizer_stats", "hooks.ema", "precision", "compile", "channels_last"}
    assert {problem.path for problem in error.value.problems} == wrong
    assert "hooks.export: cannot be with workers.strategy: fsdp: it runs the model on the master alone" in str(error.value)

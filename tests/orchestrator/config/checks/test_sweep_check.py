"""A sweep's domains and points are tried in the experiment they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.load import load_experiment, to_yaml
from orchestrator.config.resolve import resolve
from orchestrator.errors import ConfigError
from tests.orchestrator.config.samples import HERE, TEXT, Band, problems


def sweep_problems(file: Path, space: str, search: str = "random") -> list[tuple[str, int | None, str]]:
    text = f"base: line.yaml\nsweep:\n  metric: val/loss\n  search: {search}\n  space:\n"
    other = file.parent / "sweep.yaml"
    text += "".join(f"    {line}\n" for line in space.splitlines())
    return [(p.path.removeprefix("sweep.space."), p.line, p.message) for p in problems(other, text)]


def test_a_sweep_is_an_experiment_with_a_space(file: Path) -> None:
    other = file.parent / "sweep.yaml"
    space = (
        "{hooks.shadow.decay: {choice: [0, 1]}, optimizer.lr: {loguniform: [1e-3, 1]}, task_args.width: {randint: [1,"
        " 9]}}"
    )
    other.write_text(
        f"base: line.yaml\nname: wide\nsweep: {{metric: val/loss, mode: min, trials: 4, space: {space}}}\n"
    )
    experiment = load_experiment(other)
    assert experiment.name == "wide"
    assert experiment.sweep is not None
    assert experiment.sweep.space["hooks.shadow.decay"].model_dump() == {"choice": [0, 1]}
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


def test_a_check_across_swept_fields_waits_for_the_trial(file: Path) -> None:
    file.write_text(TEXT + f"  band: {{type: '{HERE}:Band', low: 0, high: 1}}\n")
    other = file.parent / "sweep.yaml"
    start = "base: line.yaml\nsweep:\n  metric: x\n  mode: max\n  space:\n    hooks.band.low: {choice: [0, 5]}\n"
    other.write_text(start + "    hooks.band.high: {choice: [6, 7]}\n")
    trial = load_experiment(other).source.without_sweep()
    assert resolve(trial.with_values({"hooks.band.low": 5, "hooks.band.high": 6})).hooks["band"] == Band(5, 6)
    with pytest.raises(ConfigError, match="low must be below high"):
        resolve(trial.with_values({"hooks.band.low": 5}))
    (problem,) = problems(other, start)
    assert (problem.path, problem.line) == ("sweep.space.hooks.band.low", 6)


def test_problems_of_space_and_base_come_together(file: Path) -> None:
    file.write_text(TEXT.replace("0.25", "2").replace("epochs", "epoch"))
    found = sweep_problems(file, "hooks.shadow.keep: {choice: [x]}\noptimizer.lr: {uniform: [1, 0]}")
    assert {path for path, _, _ in found} == {
        "",
        "epoch",
        "hooks.shadow.decay",
        "hooks.shadow.keep",
        "optimizer.lr",
    }


def test_grid_search_wants_points(file: Path) -> None:
    ((path, line, said),) = sweep_problems(file, "optimizer.lr: {uniform: [0, 1]}", search="grid")
    assert (path, line) == ("optimizer.lr.uniform", 6)
    assert "cannot be searched by grid" in said


@pytest.mark.parametrize(
    ("domain", "hint"),
    [
        ("{uniform: [1, 5]}", "write {randint: [1, 6]}, high not included"),
        ("{loguniform: [1, 5]}", "write {lograndint: [1, 6]}, high not included"),
        ("{uniform: [0.5, 5]}", "write randint, in whole numbers, high not included"),
        ("{normal: [4, 2]}", "write randint, in whole numbers, high not included"),
        ("{quniform: [0.5, 5.5, 0.5]}", "write quniform with low, high and step in whole numbers"),
    ],
)
def test_a_range_over_a_field_of_whole_numbers_says_what_to_write(file: Path, domain: str, hint: str) -> None:
    file.write_text(f"{TEXT}sweep:\n  metric: val/loss\n  space:\n    hooks.shadow.keep: {domain}\n")
    (problem,) = problems(file, file.read_text())
    assert problem.message.startswith("must be a whole number")
    assert problem.suggestion == hint


@pytest.mark.parametrize("path", ["hooks.shadow.mode", "loader.drop_last", "hooks.shadow.tags", "precision"])
def test_a_range_over_a_field_that_is_no_number_says_to_write_a_choice(file: Path, path: str) -> None:
    (problem,) = problems(file, f"{TEXT}sweep:\n  metric: val/loss\n  space:\n    {path}: {{uniform: [0, 1]}}\n")
    assert problem.suggestion == "a range is of numbers; write choice"


def test_all_mistakes_of_a_sweep_are_told_at_once(file: Path) -> None:
    """Wrong keys, keys that contradict each other, domains that are wrong by themselves and those that fit no field."""
    text = f"""{TEXT}sweep:
  metric: [val/loss, train/loss]
  trials: 0
  serch: grid
  search: random
  stop: {{target: x}}
  scheduler: pbt
  max_concurrent: 2
  space:
    hooks.shadow.keep: {{uniform: [1, 5]}}
    optimizer.lr: {{loguniform: [0, 1]}}
"""
    told = {problem.path: problem.message for problem in problems(file, text)}
    assert told.keys() == {
        "sweep",
        "sweep.trials",
        "sweep.serch",
        "sweep.stop.target",
        "sweep.space.hooks.shadow.keep",
        "sweep.space.optimizer.lr",
    }
    assert told["sweep"].split("; ") == [
        "several metrics need search: optuna",
        "random search knows one",
        "several metrics need scheduler: fifo",
        "pbt goes by one",
        "max_concurrent does not go with pbt, whose trials wait for each other",
    ]


def test_what_follows_from_a_wrong_key_alone_is_not_told(file: Path) -> None:
    """Without its mode it is not known which way `memory/held` is better, and with it wrong that is no second
    mistake."""
    text = f"{TEXT}sweep:\n  metric: memory/held\n  mode: mxa\n  space:\n    hooks.shadow.keep: {{choice: [1, 5]}}\n"
    assert [problem.path for problem in problems(file, text)] == ["sweep.mode"]

"""A sweep's settings are checked together, and its values in the experiment they are for."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.experiment.load import load_experiment, make_experiment
from orchestrator.experiment.resolve import resolve
from tests.orchestrator.experiment.samples import HERE, TEXT, Band, problems

LR = {"optimizer.lr": {"uniform": [0.1, 0.9]}}
ON = {"choice": [None, {}, {"average": "stochastic", "decay": 0}]}
MIXED = {
    "hooks.ema": ON,
    "hooks.ema.decay": {"uniform": [0.1, 0.9]},
    "optimizer.lr": {"loguniform": [0.01, 1]},
    "batch_size": {"choice": [8, 16]},
}
TWO_METRICS = {"metric": ["a", "b"], "mode": "max", "search": "optuna"}
RACE = {"scheduler": "race", "repeats": 2}
GRID = {"batch_size": {"choice": [1, 2, 3]}, "epochs": {"grid": [1, 2]}}


def swept(
    space: dict[str, Any], more: dict[str, Any] | None = None, **sweep: Any
) -> dict[str, Any]:
    settings = {"metric": "val/loss", "trials": 4, "space": space, **sweep}
    settings = {key: value for key, value in settings.items() if value is not None}
    hooks = {"shadow": {"type": f"{HERE}:Shadow"}}
    return {
        "name": "line",
        "task": f"{HERE}:Line",
        "epochs": 1,
        "hooks": hooks,
        "sweep": settings,
        **(more or {}),
    }


def refused(*arguments: Any, **sweep: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        make_experiment(swept(*arguments, **sweep))
    return [str(problem) for problem in caught.value.problems]


def space_problems(file: Path, space: str) -> list[tuple[str, int | None, str]]:
    lines = "".join(f"    {line}\n" for line in space.splitlines())
    text = f"base: line.yaml\nsweep:\n  metric: val/loss\n  space:\n{lines}"
    other = file.parent / "sweep.yaml"
    return [(p.path.removeprefix("sweep.space."), p.line, p.message) for p in problems(other, text)]


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"metric": "val/score"},
            "sweep.mode: cannot tell whether a higher or a lower 'val/score' is better",
        ),
        (
            {"metric": ["a", "b"], "mode": "max"},
            "sweep.metric: cannot be a list with search: random",
        ),
        (
            {**TWO_METRICS, "scheduler": "asha"},
            "sweep.metric: cannot be a list with scheduler: asha",
        ),
        ({**TWO_METRICS, "mode": ["max"]}, "sweep.mode: must be one mode, or one for each of"),
        ({"metric": "stats/step_s/p101"}, "sweep.metric: stats/step_s/p101: "),
        (
            {"search": "optuna", "scheduler": "pbt"},
            "sweep.search: cannot be optuna with scheduler: pbt",
        ),
        (
            {"scheduler": "hyperband", "max_concurrent": 2},
            "sweep.max_concurrent: has no effect with scheduler: hyper",
        ),
        (
            {"engine": "train", "scheduler": "hyperband"},
            "sweep.engine: cannot be train with scheduler: hyperband",
        ),
        (
            {"constraints": {"process_peak_rss_bytes": "<= 500m"}},
            "sweep.constraints.process_peak_rss_bytes: must be a number or a size such as 8 GiB,"
            " got a duration: '<= 500m'",
        ),
        (
            {"constraints": {"total_s": "<= 90M"}},
            "sweep.constraints.total_s: must be a number or a duration such as 2h, got a size:"
            " '<= 90M'",
        ),
        (
            {"constraints": {"samples_per_s": ">= 100s"}},
            "sweep.constraints.samples_per_s: must be a number, got a duration: '>= 100s'",
        ),
        (
            {"repeats": 2, "scheduler": "pbt"},
            "sweep.repeats: cannot be combined with scheduler: pbt",
        ),
        ({"space": {}}, "sweep.space: must not be empty without repeats (add a parameter"),
        ({"space": None}, "sweep.space: must not be empty without repeats (add a parameter"),
        (
            {"space": {}, "repeats": 3},
            "sweep.trials: must be 3 (repeats) with an empty space, got 4 (remove it)",
        ),
        (
            {"space": {}, "repeats": 4, "search": "optuna"},
            "sweep.search: cannot be optuna with an empty space (remove it)",
        ),
        ({"aggregate": "lower_bound"}, "sweep.aggregate: lower_bound needs several trials of"),
        (
            {"space": GRID, "points": [{}], "search": "grid", "trials": 6},
            "sweep.points: has no effect with search",
        ),
        ({"scheduler": "race"}, "sweep.repeats: must be at least 2 with scheduler: race"),
        ({**RACE, "aggregate": "lower_bound"}, "sweep.aggregate: cannot be lower_bound"),
        ({**RACE, "trials": 2}, "sweep.scheduler: race needs at least 2 configurations, got 1 ("),
        (
            {**RACE, "space": {}, "trials": None},
            "sweep.scheduler: race needs at least 2 configurations, got 1 (",
        ),
        (
            {**RACE, "space": {"epochs": {"grid": [1]}}, "search": "grid", "trials": None},
            "sweep.scheduler: race needs at least 2 configurations, got 1 (",
        ),
        (
            {"search": {"type": "optuna", "sampler": "GPSamplr"}},
            "did you mean 'GPSampler'?",
        ),
        (
            {"search": {"type": "optuna", "sampler": "BruteForceSampler"}},
            "sweep.search: BruteForceSampler is search: grid",
        ),
        (
            {"search": {"type": "optuna", "sampler": "GPSampler", "n_startup_trial": 3}},
            "sweep.search.n_startup_trial: unknown key (did you mean 'n_startup_trials'?)",
        ),
        (
            {"search": {"type": "optuna", "n_startup_trials": "many"}},
            "sweep.search.n_startup_trials: must be an integer, got 'many'",
        ),
        (
            {"search": {"type": "optuna", "seed": 3}},
            "sweep.search.seed: is sweep.seed; remove it here",
        ),
        (
            {"search": {"type": "optuna", "gamma": "sqrt"}},
            "sweep.search.gamma: ",
        ),
        (
            {**TWO_METRICS, "search": {"type": "optuna", "sampler": "CmaEsSampler"}},
            "sweep.search.sampler: CmaEsSampler takes a single metric",
        ),
        ({"search": "tpe"}, "sweep.search.type: must be one of 'grid', 'random', 'optuna'"),
        ({**RACE, "search": "optuna"}, "sweep.search: cannot be optuna with scheduler:"),
        ({**RACE, "budget": {"trials": 3}}, "sweep.budget.trials: cannot be combined"),
        (
            {"search": "grid"},
            "sweep.space.optimizer.lr.uniform: is not supported with search: grid",
        ),
        (
            {"search": "optuna", "space": {"seed": {"grid": [1]}}},
            "sweep.space.seed.grid: is not supported with search",
        ),
        (
            {"search": "optuna", "space": {"optimizer.lr": {"normal": [0, 1]}}},
            "search: optuna; use uniform",
        ),
        # Paths inside paths.
        ({"space": {**MIXED, "hooks.ema": {"choice": [1]}}}, "is not a choice of null"),
        (
            {"space": {**MIXED, "hooks.ema": {"choice": [None, {"decay": 0.5}]}}},
            "hooks.ema.decay: is never sampled",
        ),
        (
            {"space": {**MIXED, "hooks.ema.decay": {"grid": [0.1]}}},
            "hooks.ema.decay: is a grid inside 'hooks.ema'",
        ),
        *(
            (
                {
                    "trials": None if search == "grid" else 4,
                    "search": search,
                    "space": {"hooks.ema": {"fan_out": values}, "hooks.ema.decay": inner},
                },
                "hooks.ema.decay: is inside 'hooks.ema', which is a fan_out; use grid for it",
            )
            for values in ([None, {}], [{}, None])
            for search, inner in (
                ("random", {"grid": [0.1, 0.2]}),
                ("random", {"choice": [0.1, 0.2]}),
                ("grid", {"choice": [0.1, 0.2]}),
            )
        ),
        # What a population changes.
        (
            {"space": MIXED, "scheduler": {"type": "pbt", "mutate": ["batch_size"]}},
            "sweep.scheduler.mutate.0:",
        ),
        (
            {
                "space": MIXED,
                "scheduler": {"type": "pbt", "mutate": ["optimizer.lr", "optimizer.mom"]},
            },
            "sweep.scheduler.mutate.1: 'optimizer.mom' is not in the space",
        ),
        (
            {"space": MIXED, "scheduler": "pbt", "trials": 1},
            "sweep.trials: must be at least 2 with scheduler: pbt",
        ),
        (
            {"space": {"batch_size": {"choice": [8]}}, "scheduler": "pbt"},
            "sweep.scheduler: pbt needs",
        ),
        # Counts, with the arithmetic.
        (
            {"space": GRID, "search": "grid", "trials": 24},
            "must be 6 (6 points of the grid), got 24 (remove it",
        ),
        (
            {"space": GRID, "search": "grid", "trials": 6, "repeats": 2},
            "must be 12 (6 points of the grid x 2 repeats)",
        ),
        (
            {"space": GRID, "trials": 5},
            "must be a multiple of 2 (2 points of the grid), got 5 (use 4 or 6)",
        ),
        ({"space": GRID, "trials": 1}, "got 1 (use 2)"),
        (
            {"trials": 10, "repeats": 4},
            "must be a multiple of 4 (4 repeats), got 10 (use 8 or 12)",
        ),
        (
            {"space": GRID, "trials": 8, "points": [{"batch_size": 1}] * 5},
            "need 10 trials for 5 points, and the sweep has 8",
        ),
        (
            {"space": {"seed": {"choice": [1, 2]}}, "repeats": 2},
            "sweep.space.seed: conflicts with sweep.repeats, which sets seed in each trial",
        ),
        (
            {"repeats": {"optimizer.lr": [0.1, 0.2]}},
            "sweep.space.optimizer.lr: conflicts with sweep.repeats, which sets optimizer.lr in",
        ),
        (
            {
                "space": {"hooks.ema": {"choice": [None, {}]}},
                "repeats": {"hooks.ema.decay": [0, 1]},
            },
            "sweep.space.hooks.ema: conflicts with sweep.repeats, which sets hooks.ema.decay in",
        ),
        (
            {"repeats": {"task_args.scala": [1, 2]}},
            "sweep.repeats.task_args.scala: unknown key (did you mean 'scale'?)",
        ),
        (
            {"repeats": {"batch_size": [4, 0]}},
            "sweep.repeats.batch_size: must be at least 1, got 0",
        ),
        ({"repeats": {"workers.count": [1, 2]}}, "cannot be swept: all trials share `workers`"),
        ({"repeats": {"seed": []}}, "sweep.repeats: must list at least 2 values of seed, got []"),
        ({"repeats": {"seed": [4]}}, "sweep.repeats: must list at least 2 values of seed, got [4]"),
        (
            {"repeats": {"seed": [4, 5, 4]}},
            "sweep.repeats: must list different values of seed, got 4 twice",
        ),
        ({"repeats": {}}, "sweep.repeats: must map one path to its values, got 0 paths"),
        (
            {"repeats": {"seed": [1, 2], "task_args.val": [8, 9]}},
            "sweep.repeats: must map one path to its values, got 2 paths",
        ),
        ({"repeats": 0}, "sweep.repeats: must be at least 1"),
        (
            {"metric": ["val/loss", "val/loss"], "search": "optuna"},
            "sweep.metric: must list each metric once, got val/loss twice",
        ),
        ({"repeats": "seed"}, "sweep.repeats: must be an integer or a mapping"),
        (
            {"trials": 10, "repeats": {"seed": [1, 5, 9, 7]}},
            "must be a multiple of 4 (4 repeats), got 10 (use 8 or 12)",
        ),
        (
            {"space": GRID, "search": "grid", "trials": None, "seed": 3},
            "sweep.seed: has no effect: search: grid samples",
        ),
        # Points.
        (
            {"points": [{"optimizer.lr": 0.95}]},
            "sweep.points.0.optimizer.lr: must be within uniform: ",
        ),
        (
            {"space": {"seed": {"quniform": [8, 16, 8]}}, "points": [{"seed": 12}]},
            "points.0.seed: must be within quniform",
        ),
        ({"points": [{"optimizer.rl": 1}]}, "is not in the space (did you mean 'optimizer.lr'?)"),
        (
            {
                "space": {"hooks.ema.decay": {"fan_out": [0.5, 0.9]}},
                "points": [{"hooks.ema.decay": 0.9}],
                "trials": 2,
            },
            "sweep.points.0.hooks.ema.decay: cannot be in a point",
        ),
    ],
)
def test_contradicting_sweep_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    assert message in "\n".join(refused(**{"space": LR, **settings}))


@pytest.mark.parametrize(
    "settings",
    [
        {"space": GRID, "search": "grid", "repeats": 4, "trials": 24},
        {"space": GRID, "trials": 4, "points": [{"epochs": 1}, {"epochs": 2}, {"batch_size": 3}]},
        {"space": GRID, "search": "grid", "trials": 6, "budget": {"trials": 5}},
        {"space": GRID, "trials": 12, "repeats": 3, "points": [{"batch_size": 1}] * 2},
        {
            "space": {**MIXED, "hooks.ema.decay": {"grid": [0.1]}, "optimizer.lr": {"grid": [1]}},
            "search": "grid",
            "trials": None,
        },
        {"space": MIXED, "scheduler": "pbt"},
        {"search": "optuna", "metric": ["val/loss", "train/iteration_s"], "mode": ["min", "min"]},
        {"constraints": {"peak_allocated_bytes": "<= 500 MB", "step_s": "<= 2s", "epoch": "<= 3"}},
    ],
)
def test_consistent_sweep_settings_are_accepted(settings: dict[str, Any]) -> None:
    make_experiment(swept(**{"space": LR, **settings}))


# Values


def test_item_that_sets_a_sampled_path_is_checked_with_its_own_value() -> None:
    item = {"average": "stochastic", "decay": 0.7}
    space = {**MIXED, "hooks.ema": {"choice": [None, {}, item]}}
    assert refused(space) == [
        "sweep.space.hooks.ema: decay=0.7 has no effect with average: stochastic; remove it"
    ]


@pytest.mark.parametrize(
    "line",
    [
        "hooks.shadow: {choice: [null, false, {type: '" + HERE + ":Shadow', decay: 1}]}",
        "hooks.checkpoint.keep: {randint: [1, 5]}",
        "optimizer: {choice: [{type: SGD}, {type: Adam}]}",
        "precision: {grid: [fp32, bf16]}",
        "scheduler: {choice: [null, {type: StepLR, step_size: 1}]}",
        "hooks.band: {choice: [null, {type: '" + HERE + ":Band', low: 0, high: 1}]}",
        "task_args.scale: {normal: [0.5, 0.01]}",
    ],
)
def test_valid_spaces_are_accepted(file: Path, line: str) -> None:
    other = file.parent / "sweep.yaml"
    other.write_text(f"base: line.yaml\nsweep:\n  metric: val/loss\n  space:\n    {line}\n")
    assert load_experiment(other).sweep is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hooks.shadow.decay: {choice: [0.5, 1.2]}", "must be at most 1, got 1.2"),
        ("hooks.shadow.keep: {uniform: [1, 5]}", "must be an integer, but uniform samples"),
        ("hooks.shadow.decoy: {uniform: [0, 1]}", "unknown key"),
        (
            "hooks.shadow: {choice: [{type: '" + HERE + ":Shadow', decay: 2}]}",
            "decay: must be at most 1, got 2",
        ),
        ("hooks.shadwo.decay: {uniform: [0, 1]}", "unknown hook 'shadwo'"),
        ("optimizer.lr: {uniform: [-1, 1]}", "SGD raised: Invalid learning rate: -1.0"),
        ("optimizer.type: {choice: [SGD, Adam]}", "optimizer.momentum: unknown key"),
        (
            "task: {choice: ['" + HERE + ":Line', 'tests.tasks:Points']}",
            "task_args.width: unknown key",
        ),
        (
            "hooks.shadow.type: {choice: [" + HERE + ":Shadow, console]}",
            "hooks.shadow.decay: unknown key",
        ),
        ("scheduler.type: {choice: [StepLR]}", "scheduler.step_size: is missing"),
        (
            "changes: {choice: [[{at: 1, set: {hooks.shadow.mode: far}}]]}",
            "0.set.hooks.shadow.mode: cannot change",
        ),
        ("base: {choice: [line.yaml]}", "cannot be swept: all trials share `base`"),
        (
            "optimizer.type.deep: {choice: [1]}",
            "cannot be set: optimizer.type is 'SGD', not a mapping",
        ),
        ("task_args.width: {randint: [0, 4]}", "must be greater than 0, got 0"),
        ("steps: {choice: [5]}", "cannot be combined with epochs"),
        ("workers.count: {choice: [1, 2]}", "cannot be swept: all trials share `workers`"),
    ],
)
def test_invalid_spaces_are_located(file: Path, line: str, message: str) -> None:
    found = space_problems(file, f"seed: {{choice: [1, 2]}}\n{line}")
    path, _, reported = found[0]
    assert {number for _, number, _ in found} == {6}
    assert path.startswith(line.partition(":")[0])
    assert reported.startswith(message)


@pytest.mark.parametrize(
    ("domain", "hint"),
    [
        ("uniform: [0.2, 0.8]", None),
        ("uniform: [0.5, 1.5]", "write randint: [1, 2]"),
        ("uniform: [1, 5]", "write randint: [1, 6]"),
        ("loguniform: [1.5, 8.5]", "write lograndint: [2, 9]"),
        ("loguniform: [1.2, 1.9]", None),
        ("normal: [4, 1, 1, 8]", "use randint or lograndint"),
        ("quniform: [1, 10, 0.5]", "use randint or lograndint"),
    ],
)
def test_range_of_integers_is_suggested_if_there_are_any(
    file: Path, domain: str, hint: str | None
) -> None:
    other = file.parent / "sweep.yaml"
    text = f"base: line.yaml\nsweep: {{metric: val/loss, space: {{batch_size: {{{domain}}}}}}}\n"

    found = problems(other, text)

    assert {problem.suggestion for problem in found} == {hint}


def test_valid_domains_are_checked_beside_wrong_settings(file: Path) -> None:
    space = "batch_size: {choice: [0]}\nepochs: {choices: [1]}\nworkers: {choice: [1]}\nseed: 3"
    found = {path for path, _, _ in space_problems(file, space)}
    assert found == {"batch_size", "epochs.choices", "workers", "seed"}


def test_check_across_swept_fields_is_left_to_the_trial(file: Path) -> None:
    file.write_text(TEXT + f"  band: {{type: '{HERE}:Band', low: 0, high: 1}}\n")
    other = file.parent / "sweep.yaml"
    start = "base: line.yaml\nsweep:\n  metric: val/loss\n  space:\n    hooks.band.low: {choice: [0, 5]}\n"
    other.write_text(start + "    hooks.band.high: {choice: [6, 7]}\n")
    trial = load_experiment(other).source.without_sweep()
    assert resolve(trial.with_values({"hooks.band.low": 5, "hooks.band.high": 6})).hooks[
        "band"
    ] == Band(5, 6)
    with pytest.raises(ConfigError, match="low must be below high"):
        resolve(trial.with_values({"hooks.band.low": 5}))
    (problem,) = problems(other, start)
    assert (problem.path, problem.line) == ("sweep.space.hooks.band.low", 5)


def test_a_swept_sibling_hides_no_problem_of_a_value(file: Path) -> None:
    """torch refuses the rate whatever the weight decay is, and reports it for the whole optimizer."""
    lr = {"optimizer.lr": {"choice": [0.1, -1.0]}}
    decay = {"optimizer.weight_decay": {"choice": [0.0, 0.1]}}
    assert refused(lr) == refused({**lr, **decay}) == refused({**decay, **lr})
    [problem] = refused(lr)
    assert problem.startswith("sweep.space.optimizer.lr: ")
    assert "Invalid learning rate: -1.0" in problem

    [repeated] = refused(LR, repeats={"optimizer.momentum": [0.1, -1.0]})
    assert repeated.startswith("sweep.repeats.optimizer.momentum: ")


def test_a_value_that_fits_only_some_values_of_another_path_is_left_to_the_trial(
    file: Path,
) -> None:
    file.write_text(TEXT + f"  band: {{type: '{HERE}:Band', low: 0, high: 1}}\n")
    other = file.parent / "sweep.yaml"
    space = "{hooks.band.low: {choice: [0, 5]}, hooks.band.high: {choice: [1, 6, 2]}}"
    other.write_text(f"base: line.yaml\nsweep:\n  metric: val/loss\n  space: {space}\n")
    assert load_experiment(other).sweep is not None


def test_override_of_a_swept_path_has_no_effect(file: Path) -> None:
    other = file.parent / "sweep.yaml"
    other.write_text(
        "base: line.yaml\nsweep:\n  metric: val/loss\n  space: {optimizer.lr: {choice: [0.1, 0.2]}}\n"
    )
    override = "optimizer.lr=0.5"
    choice = "sweep.space.seed={choice: [1, 2]}"
    with pytest.raises(
        ConfigError, match=rf"override '{override}': optimizer.lr: has no effect: .* for all trials"
    ):
        load_experiment(other, [override])
    for overrides in (["optimizer.lr=null"], [override, choice, "sweep.space.optimizer.lr=null"]):
        load_experiment(other, overrides)
    assert load_experiment(other, ["optimizer.momentum=0.5"]).optimizer.arguments["momentum"] == 0.5

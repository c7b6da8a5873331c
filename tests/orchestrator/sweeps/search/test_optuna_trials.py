"""Optuna on a known function, without training."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator import sweep as start_sweep
from orchestrator.errors import UsageError
from orchestrator.experiment.sections.search import list_samplers
from orchestrator.experiment.sections.sweep import SweepSettings
from tests.orchestrator.runs.written import new_run
from tests.orchestrator.sweeps.search.draws import Draws, previous_trial
from tests.tasks import described

optuna = pytest.importorskip("optuna")

SPACE = {"optimizer.lr": {"loguniform": [1e-4, 1.0]}, "hooks.ema.decay": {"uniform": [0.0, 0.99]}}


def bowl(values: dict[str, Any]) -> float:
    """Best, with 0, at decay 0.7 and lr 0.01."""
    return (
        -(((values["hooks.ema.decay"] - 0.7) * 4) ** 2)
        - (math.log10(values["optimizer.lr"]) + 2) ** 2
    )


def sweep(**more: Any) -> SweepSettings:
    return SweepSettings.model_validate(
        {"metric": "val/score", "mode": "max", "trials": 40, "space": SPACE, **more}
    )


def searched(
    settings: SweepSettings, function: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    draws = Draws(settings, 0)
    found = []
    for number, values in draws:
        found.append((values, function(values)))
        draws.over(number, found[-1][1])
    return found


def test_optuna_with_the_same_seed_suggests_the_same() -> None:
    one, same, other = (
        [
            values
            for values, _ in searched(
                sweep(search="optuna", trials=15, seed=seed), lambda v: {"val/score": bowl(v)}
            )
        ]
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_optuna_draws_a_path_only_inside_its_choice() -> None:
    space = {
        **SPACE,
        "hooks.ema": {"choice": [None, {}, {"decay": 0}]},
        "hooks.ema.every": {"randint": [1, 5]},
    }
    found = searched(
        sweep(search="optuna", space=space, trials=30),
        lambda values: {"val/score": values.get("hooks.ema.decay", 0.5)},
    )
    kinds = {
        str(values["hooks.ema"]): ("hooks.ema.decay" in values, "hooks.ema.every" in values)
        for values, _ in found
    }
    assert kinds == {"None": (False, False), "{}": (True, True), "{'decay': 0}": (False, True)}
    # What is better with the hook on is searched with the hook on.
    assert sum(values["hooks.ema"] == {} for values, _ in found[10:]) > 12


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        ({"quniform": [8, 30, 8]}, [8, 16, 24]),
        ({"quniform": [0.1, 0.75, 0.3]}, [0.1, 0.4, 0.7]),
        ({"randint": [0, 3]}, [0, 1, 2]),
    ],
)
def test_optuna_suggests_the_ends_of_steps_as_often_as_the_values_between(
    domain: dict[str, Any], expected: list[float]
) -> None:
    search = {"type": "optuna", "sampler": "RandomSampler"}
    settings = sweep(search=search, space={"x": domain}, trials=300)
    found = [values["x"] for values, _ in searched(settings, lambda _: {"val/score": 0.0})]
    assert {*found} == {*expected}
    assert {type(value) for value in found} == {type(expected[0])}
    for value in expected:
        assert found.count(value) == pytest.approx(100, abs=30)


@pytest.mark.parametrize(
    "search",
    [
        {"sampler": "QMCSampler"},
        {"sampler": "TPESampler", "multivariate": True, "group": True},
    ],
)
def test_an_experimental_sampler_of_optuna_warns_nobody(
    search: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    """The user has chosen it, and cannot change what Optuna will make of it."""
    settings = sweep(search={"type": "optuna", **search}, trials=3)
    assert len(searched(settings, lambda values: {"val/score": bowl(values)})) == 3
    assert [str(warning.message) for warning in recwarn] == []


def test_optuna_tries_points_first_and_learns_from_them() -> None:
    space = {**SPACE, "batch_size": {"choice": [8, 16, 32]}}
    points = [
        {"hooks.ema.decay": 0.7, "optimizer.lr": 0.01, "batch_size": 32},
        {"optimizer.lr": 0.5},
    ]
    settings = sweep(search="optuna", space=space, points=points, trials=3)
    draws = Draws(settings, 0)
    (_, first), (_, second), _ = draws
    assert first == points[0]
    assert second["optimizer.lr"] == 0.5
    assert draws.search._study.trials[0].params == {
        "hooks.ema.decay": 0.7,
        "optimizer.lr": 0.01,
        "batch_size": 2,
    }


def test_optuna_learns_from_several_metrics() -> None:
    settings = sweep(
        search="optuna", metric=["val/score", "train/iteration_s"], mode=["max", "min"], trials=3
    )
    draws = Draws(settings, 0)
    for number, values in draws:
        draws.over(
            number, {"val/score": values["hooks.ema.decay"], "train/iteration_s": float(number)}
        )
    study = draws.search._study
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    expected = [[trial.params["hooks.ema.decay"], float(trial.number)] for trial in study.trials]
    assert [trial.values for trial in study.trials] == expected


def test_optuna_learns_again_from_earlier_attempts_of_the_sweep() -> None:
    """Of eight begun, five reported, one failed, one is under way and one (6) was suggested but
    never begun."""
    space = {**SPACE, "batch_size": {"choice": [8, 16, 32]}}
    settings = sweep(search="optuna", space=space, trials=12)
    known = dict(Draws(settings, 0))
    previous = {
        number: previous_trial(
            known[number],
            {5: "failed", 7: "lost"}.get(number, "finished"),
            [{"val/score": bowl(known[number])}],
        )
        for number in (0, 1, 2, 3, 4, 5, 7)
    }
    draws = Draws(settings, 0, previous)
    study = draws.search._study
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 5 + [
        "FAIL",
        "RUNNING",
        "RUNNING",
    ]
    assert study.best_value == max(bowl(known[number]) for number in range(5))
    assert [trial.params["hooks.ema.decay"] for trial in study.trials if trial.number != 6] == [
        known[number]["hooks.ema.decay"] for number in previous
    ]
    drawn = {}
    for number, values in draws:
        drawn[number] = values
        draws.over(number, {"val/score": bowl(values)})
    assert list(drawn) == [6, 7, 8, 9, 10, 11]
    assert drawn[7] == known[7]
    # The seed goes on instead of giving the first draws again.
    assert all(values != known[number] for values in drawn.values() for number in range(6))
    assert [trial.state.name for trial in study.trials].count("COMPLETE") == 11


@pytest.mark.parametrize("aggregate", ["mean", "lower_bound"])
def test_optuna_learns_from_the_aggregate_of_repeats_without_failed_ones(aggregate: str) -> None:
    draws = Draws(sweep(search="optuna", trials=9, repeats=3, aggregate=aggregate), 5)
    reached = iter([1.0, 2.0, 6.0, 4.0, None, 8.0, None, None, None])
    drawn = []
    for number, values in draws:
        drawn.append((number, values))
        score = next(reached)
        draws.over(number, None if score is None else {"val/score": score})
        assert len(draws.search._study.get_trials()) == number // 3 + 1
    assert [values["seed"] for _, values in drawn] == [5, 6, 7] * 3
    for one, *others in (drawn[first : first + 3] for first in (0, 3, 6)):
        assert all({**values, "seed": 5} == one[1] for _, values in others)
    trials = draws.search._study.trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "COMPLETE", "FAIL"]
    # Sums of squares of 14 and 8 over 2 and 1 degrees of freedom.
    errors = [math.sqrt(14 / 2 / 3), math.sqrt(8 / 2)] if aggregate == "lower_bound" else [0, 0]
    assert [trial.value for trial in trials] == [
        pytest.approx(3.0 - errors[0]),
        pytest.approx(6.0 - errors[1]),
        None,
    ]


def test_repeats_may_end_out_of_order() -> None:
    search = Draws(sweep(search="optuna", trials=4, repeats=2), 0).search
    numbers = [search.suggest()["number"] for _ in range(4)]
    for number, score in ((3, 4.0), (0, 1.0), (2, 2.0)):
        search.record_end(number, {"val/score": score})
    search.record_end(1, None)
    assert numbers == [0, 1, 2, 3]
    assert [trial.value for trial in search._study.trials] == [1.0, 3.0]


# Shared training

SHARED = {"hooks.ema.decay": {"fan_out": [0.5, 0.9]}, "optimizer.lr": {"loguniform": [1e-4, 1.0]}}


def test_optuna_learns_from_the_best_mean_of_the_trials_that_share_a_suggestion() -> None:
    draws = Draws(sweep(search="optuna", trials=12, repeats=2, space=SHARED), 5)
    scores = [1.0, 3.0, 6.0, None, math.nan, 1.0, 0.0, 2.0, None, None, None, None]
    numbers = []
    for trials in draws.group_trials():
        numbers.append([number for number, _ in trials])
        assert [values["hooks.ema.decay"] for _, values in trials] == [0.5, 0.9]
        assert len({(values["optimizer.lr"], values["seed"]) for _, values in trials}) == 1
        for number, _ in trials:
            draws.over(number, None if scores[number] is None else {"val/score": scores[number]})
    assert numbers == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11]]
    study = draws.search._study
    assert [(trial.state.name, trial.value) for trial in study.trials] == [
        ("COMPLETE", 6.0),
        ("COMPLETE", 1.0),
        ("FAIL", None),
    ]
    assert all(set(trial.params) == {"optimizer.lr"} for trial in study.trials)


def test_an_optuna_search_with_followers_resumes_where_it_was() -> None:
    """Of the first draw one of three is over; the budget ends the sweep within the third."""
    space = {**SHARED, "hooks.ema.decay": {"fan_out": [0.5, 0.9, 0.99]}}
    settings = sweep(search="optuna", trials=9, space=space, budget={"trials": 8})
    first = dict(next(Draws(settings, 0).group_trials()))
    previous = {
        number: previous_trial(
            first[number], "finished" if number == 1 else "lost", [{"val/score": 4.0}]
        )
        for number in range(3)
    }
    draws = Draws(settings, 0, previous)
    numbers = []
    for trials in draws.group_trials():
        numbers.append([number for number, _ in trials])
        for number, values in trials:
            assert number not in first or values == first[number]
            draws.over(number, {"val/score": 2.0})
    assert numbers == [[0, 2], [3, 4, 5], [6, 7]]
    assert [trial.value for trial in draws.search._study.trials] == [4.0, 2.0, None]


MIXED = {"batch_size": {"choice": [8, 16, 32]}, "epochs": {"randint": [1, 9]}, **SPACE}
"""In the order in which the search asks: paths of fewer keys come first."""


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("sampler", list_samplers())
def test_each_sampler_suggests_what_optuna_itself_does(sampler: str) -> None:
    """The reference asks the sampler with its own names and distributions, and tells the same."""
    pytest.importorskip("scipy")
    pytest.importorskip("cmaes")
    parameters = {} if sampler in ("QMCSampler", "RandomSampler") else {"n_startup_trials": 3}
    if sampler.startswith("NSGA"):
        parameters = {"population_size": 3}
    settings = sweep(
        search={"type": "optuna", "sampler": sampler, **parameters}, space=MIXED, trials=7, seed=4
    )
    found = searched(settings, lambda values: {"val/score": bowl(values)})

    study = optuna.create_study(
        direction="maximize", sampler=getattr(optuna.samplers, sampler)(**parameters, seed=4)
    )
    for values, report in found:
        trial = study.ask()
        assert values == {
            "batch_size": [8, 16, 32][trial.suggest_categorical("batch_size", range(3))],
            "epochs": trial.suggest_int("epochs", 1, 8),
            "optimizer.lr": trial.suggest_float("optimizer.lr", 1e-4, 1.0, log=True),
            "hooks.ema.decay": trial.suggest_float("hooks.ema.decay", 0.0, 0.99),
        }
        study.tell(trial, report["val/score"])


# Constraints

LIMITED = {"constraints": {"val/cost": "<= 1"}}


@pytest.mark.parametrize("sampler", ["TPESampler", "NSGAIISampler"])
def test_samplers_learn_constraints_as_optuna_itself_does(sampler: str) -> None:
    """The best of the bowl, 0.7, is beyond the limit: Optuna's own loop suggests the same."""
    settings = sweep(search={"type": "optuna", "sampler": sampler}, trials=25, **LIMITED)
    draws = Draws(settings, 0)
    suggested = []
    for number, values in draws:
        suggested.append(values)
        draws.search.record_end(number, {"val/score": bowl(values)}, [_excess(values)])

    study = optuna.create_study(
        direction="maximize",
        sampler=list_samplers()[sampler](seed=0),
    )
    for values in suggested:
        trial = study.ask()
        expected = {
            "optimizer.lr": trial.suggest_float("optimizer.lr", 1e-4, 1.0, log=True),
            "hooks.ema.decay": trial.suggest_float("hooks.ema.decay", 0.0, 0.99),
        }
        assert values == pytest.approx(expected)
        trial.set_constraint("cost", _excess(expected))
        study.tell(trial, bowl(expected))


def _excess(values: dict[str, Any]) -> float:
    return float(values["hooks.ema.decay"]) - 0.4


def test_one_repeat_beyond_a_limit_makes_the_suggestion_infeasible() -> None:
    search = Draws(sweep(search="optuna", trials=4, repeats=2, **LIMITED), 0).search
    for number, excess in enumerate([-0.5, 0.25, -0.5, math.inf]):
        search.suggest()
        search.record_end(number, {"val/score": 1.0}, [excess])
    first, second = search._study.trials
    assert first.constraints == {"val/cost": 0.25}
    assert second.state.name == "FAIL", "a number that is not known teaches nothing"


def test_optuna_learns_the_best_feasible_member_of_a_fan_out() -> None:
    draws = Draws(sweep(search="optuna", trials=2, space=SHARED, **LIMITED), 0)
    for number, (score, excess) in enumerate([(9.0, 1.0), (2.0, -1.0)]):
        if number == 0:
            draws.search.suggest()
        draws.search.record_end(number, {"val/score": score}, [excess])
    (trial,) = draws.search._study.trials
    assert (trial.value, trial.constraints) == (2.0, {"val/cost": -1.0})


# Another sweep


def test_search_begins_with_the_trials_of_another_sweep(tmp_path: Path) -> None:
    """As a study of Optuna to which the same trials were added; one is outside the space, one has
    failed."""
    folder = new_run(
        tmp_path, "first", "hooks: {}\n", sweep={"objectives": [["val/score", "max"]], "trials": 14}
    )
    points = [{"optimizer.lr": 10.0**-k, "hooks.ema.decay": k / 5} for k in range(5)] * 2
    for number, values in enumerate([*points, {**points[0], "optimizer.lr": 5.0}, points[0]]):
        trial = new_run(f"{folder}/trials", f"trial-{number:04d}", "hooks: {}\n", values=values)
        trial.begin_attempt()
        counters = {"attempt": 0, "epoch": 0, "step": 1, "iteration": 1}
        trial.append_report({**counters, "val/score": bowl(values)})
        trial.run_file.end("finished" if number < 11 else "failed")

    settings = sweep(search={"type": "optuna", "from": str(folder)}, trials=4)
    suggested = [values for values, _ in searched(settings, lambda v: {"val/score": bowl(v)})]

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    ranges = {
        "optimizer.lr": optuna.distributions.FloatDistribution(1e-4, 1.0, log=True),
        "hooks.ema.decay": optuna.distributions.FloatDistribution(0.0, 0.99),
    }
    for values in points:
        study.add_trial(
            optuna.create_trial(params=values, distributions=ranges, value=bowl(values))
        )
    for values in suggested:
        asked = study.ask(ranges)
        assert values == pytest.approx(asked.params)
        study.tell(asked, bowl(asked.params))


def make_earlier_sweep(folder: Path, trials: Sequence[tuple[dict[str, Any], float]]) -> str:
    """Make an ended sweep of trials with these values and scores, and return its folder."""
    settings = {"objectives": [["val/score", "max"]], "trials": len(trials)}
    sweep_folder = new_run(folder, "first", "hooks: {}\n", sweep=settings)
    for number, (values, score) in enumerate(trials):
        name = f"trial-{number:04d}"
        trial = new_run(f"{sweep_folder}/trials", name, "hooks: {}\n", values=values)
        trial.begin_attempt()
        counters = {"attempt": 0, "epoch": 0, "step": 1, "iteration": 1}
        trial.append_report({**counters, "val/score": score})
        trial.run_file.end("finished")
    return str(sweep_folder)


def test_trial_of_another_sweep_that_diverged_teaches_nothing(tmp_path: Path) -> None:
    point = {"optimizer.lr": 0.1, "hooks.ema.decay": 0.5}
    folder = make_earlier_sweep(tmp_path, [(point, math.nan), (point, 2.0)])
    draws = Draws(sweep(search={"type": "optuna", "from": folder}), 0)
    assert [trial.value for trial in draws.search._study.trials] == [2.0]


def test_search_learns_from_another_sweep_with_the_same_fan_out(tmp_path: Path) -> None:
    trials = [({"optimizer.lr": 0.1, "hooks.ema.decay": decay}, decay) for decay in (0.5, 0.9, 0.3)]
    folder = make_earlier_sweep(tmp_path, trials)
    space = {**SPACE, "hooks.ema.decay": {"fan_out": [0.5, 0.9]}}
    draws = Draws(sweep(search={"type": "optuna", "from": folder}, space=space), 0)
    learned = [(trial.params, trial.value) for trial in draws.search._study.trials]
    assert learned == [({"optimizer.lr": 0.1}, 0.5), ({"optimizer.lr": 0.1}, 0.9)]


def test_sweep_without_a_trial_to_learn_from_is_an_error(tmp_path: Path) -> None:
    folder = new_run(
        tmp_path, "first", "hooks: {}\n", sweep={"objectives": [["val/score", "max"]], "trials": 1}
    )
    with pytest.raises(
        UsageError, match=r"sweep\.search\.from: no ended trial of .*first has val/sc"
    ):
        Draws(sweep(search={"type": "optuna", "from": str(folder)}), 0)


def test_sweep_to_learn_from_must_exist(tmp_path: Path) -> None:
    settings = {
        "metric": "val/accuracy",
        "trials": 1,
        "space": {"optimizer.lr": {"uniform": [0.1, 0.2]}},
        "search": {"type": "optuna", "from": str(tmp_path / "nowhere")},
    }
    with pytest.raises(UsageError, match="nowhere"):
        start_sweep(described(sweep=settings), tmp_path / "runs", local=True)
    assert not (tmp_path / "runs").exists() or not [*(tmp_path / "runs").iterdir()]

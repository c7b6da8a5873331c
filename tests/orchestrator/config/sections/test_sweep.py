"""The sweep section: its schedulers, ends and budgets, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import load_experiment
from orchestrator.config.load import experiment_from_dict, to_dict
from orchestrator.config.python.parameters import check
from orchestrator.config.sections.sweep import PBT, Asha, Fifo, Sweep
from orchestrator.errors import ConfigError
from tests.orchestrator.config.samples import HERE

SPACE = {"optimizer.lr": {"uniform": [0.1, 0.9]}}


def section(**more: Any) -> Sweep:
    return check(Sweep, {"metric": "val/loss", "trials": 4, "space": SPACE, **more}, "sweep")


def refused(**more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        section(**more)
    (problem,) = caught.value.problems
    return str(problem)


def test_a_scheduler_is_a_name_or_a_type_with_its_parameters() -> None:
    assert section().scheduler == Fifo()
    assert section(scheduler="asha").scheduler == Asha()
    full = section(scheduler={"type": "asha", "grace_period": 2, "reduction_factor": 3, "max_t": 9}).scheduler
    assert full == Asha(grace_period=2, reduction_factor=3, max_t=9)
    assert isinstance(section(scheduler="pbt").scheduler, PBT)


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (
            "ashaa",
            "sweep.scheduler: must have one of the types 'fifo', 'asha', 'hyperband', 'median', 'race', 'pbt', 'pb2'",
        ),
        ({"type": "asha", "grace_perod": 2}, "sweep.scheduler.grace_perod: unknown key (did you mean 'grace_period'?)"),
        ({"type": "hyperband", "grace_period": 2}, "sweep.scheduler.grace_period: unknown key"),
        ({"type": "asha", "grace_period": 0}, "sweep.scheduler.grace_period: must be at least 1, got 0"),
        ({"type": "asha", "reduction_factor": 1}, "sweep.scheduler.reduction_factor: must be greater than 1, got 1"),
        (
            {"type": "asha", "grace_period": 3, "max_t": 2},
            "sweep.scheduler: max_t=2 ends trials before grace_period=3 is over",
        ),
        ({"type": "pbt", "quantile_fraction": 0.6}, "sweep.scheduler.quantile_fraction: must be at most 0.5, got 0.6"),
        (
            {"type": "pbt", "perturbation_factors": [0, 1.2]},
            "sweep.scheduler.perturbation_factors.0: must be greater than 0, got 0",
        ),
        ({"type": "pb2", "resample_probability": 0.1}, "sweep.scheduler.resample_probability: unknown key"),
        ({"grace_period": 1}, "sweep.scheduler: must say its type"),
        (3, "sweep.scheduler: must be a mapping, got 3"),
    ],
)
def test_a_wrong_scheduler_is_told_where_it_is_wrong(scheduler: Any, said: str) -> None:
    assert said in refused(scheduler=scheduler)


@pytest.mark.parametrize(
    ("written", "seconds"), [(90, 90), (1.5, 1.5), ("90s", 90), ("10m", 600), ("1.5 h", 5400), ("1d", 86400)]
)
def test_times_are_seconds_or_say_their_unit(written: Any, seconds: float) -> None:
    found = section(stop={"time": written}, budget={"time": written})
    assert found.stop is not None
    assert found.budget is not None
    assert (found.stop.time, found.budget.time) == (seconds, seconds)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"stop": {"time": "10 minutes"}},
            "sweep.stop.time: must be seconds, or text such as 90s, 10m, 2h or 1d, got '10 minutes'",
        ),
        ({"stop": {"time": 0}}, "sweep.stop.time: must be greater than 0, got 0"),
        ({"stop": {"plateau": {"patience": 0}}}, "sweep.stop.plateau.patience: must be at least 1, got 0"),
        ({"stop": {"max_report": 3}}, "sweep.stop.max_report: unknown key (did you mean 'max_reports'?)"),
        ({"budget": {"samples": 0}}, "sweep.budget.samples: must be at least 1, got 0"),
        ({"metric": "val/score"}, "whether more or less of 'val/score' is better; write mode: max or mode: min"),
        ({"metric": []}, "sweep.metric: must"),
        ({"metric": ["a", "b"], "mode": "max"}, "several metrics need search: optuna"),
        (
            {"metric": ["a", "b"], "mode": "max", "search": "optuna", "scheduler": "asha"},
            "several metrics need scheduler: fifo; asha goes by one",
        ),
        ({"metric": ["a", "b"], "search": "optuna", "mode": ["max"]}, "1 modes for 2 metrics"),
        ({"search": "optuna", "scheduler": "pbt"}, "pbt changes values itself"),
        ({"scheduler": "hyperband", "max_concurrent": 2}, "max_concurrent does not go with hyperband"),
        (
            {"engine": "train", "scheduler": "hyperband"},
            "engine: train does not go with hyperband, whose trials wait for each other",
        ),
        ({"engine": "train", "scheduler": "pbt"}, "engine: train does not go with pbt"),
        ({"engine": "ray"}, "sweep.engine: must be 'gang' or 'train', got 'ray'"),
        ({"repeats": 0}, "sweep.repeats: must be at least 1, got 0"),
        ({"repeats": 2, "scheduler": "pbt"}, "repeats does not go with pbt"),
        ({"aggregate": "median", "repeats": 2}, "sweep.aggregate: must be 'mean' or 'lower_bound', got 'median'"),
        (
            {"aggregate": "lower_bound"},
            "aggregate: lower_bound needs several trials of each configuration",
        ),
        (
            {"aggregate": "lower_bound", "repeats": 2, "scheduler": "race"},
            "aggregate: lower_bound does not go with race",
        ),
        ({"points": [{}], "search": "grid"}, "points do not go with search: grid"),
    ],
)
def test_what_is_wrong_or_does_not_go_together(more: dict[str, Any], said: str) -> None:
    assert said in refused(**more)


def test_objectives_pair_metrics_with_modes() -> None:
    assert section().objectives == [("val/loss", "min")]
    assert section(metric="val/loss", mode="max").objectives == [("val/loss", "max")]
    two = {"metric": ["val/accuracy", "train/iteration_s"], "search": "optuna"}
    assert section(**two, mode=["max", "min"]).objectives == [("val/accuracy", "max"), ("train/iteration_s", "min")]
    assert section(**two, mode="min").objectives == [("val/accuracy", "min"), ("train/iteration_s", "min")]


# Against the experiment


def written(**sweep: Any) -> dict[str, Any]:
    return {
        "name": "line",
        "task": f"{HERE}:Line",
        "epochs": 1,
        "hooks": {"shadow": {"type": f"{HERE}:Shadow"}},
        "sweep": {"metric": "val/loss", "trials": 4, **sweep},
    }


def problems(**sweep: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        experiment_from_dict(written(**sweep))
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        ({"uniform": [0.5, 1.2]}, "sweep.space.hooks.shadow.decay: must be at most 1, got 1.2"),
        ({"qloguniform": [0.5, 1.5, 0.5]}, "sweep.space.hooks.shadow.decay: must be at most 1, got 1.5"),
        ({"normal": [0.5, 0.1, 0, 1.1]}, "sweep.space.hooks.shadow.decay: must be at most 1, got 1.1"),
    ],
)
def test_a_domain_is_tried_at_its_ends(domain: dict[str, Any], said: str) -> None:
    assert problems(space={"hooks.shadow.decay": domain}) == [said]
    assert problems(space={"hooks.shadow.decay": domain}, scheduler="pbt") == [said]


def test_a_normal_distribution_is_refused_where_a_field_has_bounds() -> None:
    said = problems(space={"hooks.shadow.decay": {"normal": [0.5, 0.01]}})
    assert said == [
        (
            "sweep.space.hooks.shadow.decay: a normal distribution has no ends, and this must be at least 0; "
            "clip it: {normal: [mean, sd, low, high]}"
        ),
        (
            "sweep.space.hooks.shadow.decay: a normal distribution has no ends, and this must be at most 1; "
            "clip it: {normal: [mean, sd, low, high]}"
        ),
    ]
    experiment_from_dict(written(space={"hooks.shadow.decay": {"normal": [0.5, 0.01, 0, 1]}}))
    experiment_from_dict(written(space={"task_args.scale": {"normal": [0.5, 0.01]}}))


def test_a_path_inside_a_choice_is_tried_with_what_turns_it_on() -> None:
    on = {"choice": [None, {"type": f"{HERE}:Shadow"}]}
    space = {"hooks.other": on, "hooks.other.decay": {"uniform": [0.5, 0.9]}}
    assert experiment_from_dict(written(space=space)).sweep is not None
    space["hooks.other.decay"] = {"uniform": [0.5, 1.9]}
    assert problems(space=space) == ["sweep.space.hooks.other.decay: must be at most 1, got 1.9"]


def test_a_wrong_domain_hides_no_other_mistake() -> None:
    space = {"hooks.shadow.decay": {"unifrom": [0, 1]}, "name": {"choice": ["a"]}, "task_args.width": {"choice": [0]}}
    found = [
        "sweep.space.hooks.shadow.decay.unifrom: unknown key (did you mean 'uniform'?)",
        "sweep.space.name: cannot be swept: the trials of a sweep share their name",
    ]
    found_too = "sweep.space.task_args.width: must be greater than 0, got 0"
    assert problems(space=space) == [*found, found_too]
    clash = "sweep: points do not go with search: grid, which has its own"
    assert problems(space=space, search="grid", points=[{}]) == [*found, clash, found_too]


def test_points_are_of_the_space_and_of_their_domains() -> None:
    space = {"hooks.shadow.decay": {"uniform": [0.5, 0.9]}, "task_args.width": {"choice": [1, 2]}}
    points = [{"hooks.shadow.decay": 0.95}, {"task_args.widht": 1}, {"task_args.width": 3}]
    shared = {**space, "hooks.shadow.decay": {"fan_out": [0.5, 0.9]}}
    message = "does not belong in a point: each point is tried with every `fan_out` value; remove it"
    assert problems(space=shared, points=[{"hooks.shadow.decay": 0.9}], trials=2) == [
        f"sweep.points.0.hooks.shadow.decay: {message}"
    ]
    assert problems(space=space, points=points) == [
        "sweep.points.0.hooks.shadow.decay: is not in its domain {'uniform': [0.5, 0.9]}, got 0.95",
        "sweep.points.1.task_args.widht: is no path of the space (did you mean 'task_args.width'?)",
        "sweep.points.2.task_args.width: is not in its domain {'choice': [1, 2]}, got 3",
    ]


def test_problems_have_file_and_line(tmp_path: Any) -> None:
    file = tmp_path / "line.yaml"
    file.write_text(
        f"name: line\ntask: {HERE}:Line\nepochs: 1\nsweep:\n  metric: val/loss\n  scheduler:\n    type: asha\n   "
        " grace: 2\n  space: {optimizer.lr: {uniform: [0.1, 0.2]}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_experiment(file)
    assert str(caught.value).startswith(f"{file}:8: sweep.scheduler.grace: unknown key")


def test_a_resolved_sweep_reads_as_itself() -> None:
    experiment = experiment_from_dict(
        written(
            space={"optimizer.lr": {"uniform": [0.1, 0.9]}},
            scheduler="pbt",
            stop={"time": "10m", "plateau": {}},
            budget={"trials": 3},
        )
    )
    assert experiment_from_dict(to_dict(experiment)) == experiment

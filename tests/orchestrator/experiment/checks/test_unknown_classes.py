"""Unknown names of classes are reported together with every other mistake."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.experiment.load import load_checked, make_experiment
from orchestrator.experiment.yaml.dotted_paths import with_value
from tests.orchestrator.experiment.samples import HERE

EXPERIMENT: dict[str, Any] = {
    "name": "line",
    "task": f"{HERE}:Line",
    "epochs": 3,
    "optimizer": {"type": "SGD", "lr": 0.1},
    "scheduler": {"type": "StepLR", "step_size": 1},
    "hooks": {"shadow": {"type": f"{HERE}:Shadow"}},
}
NAMES = {
    "task": (f"{HERE}:Lin", "did you mean 'Line'?"),
    "optimizer.type": ("SGDD", "unknown optimizer 'SGDD' (did you mean 'SGD'?)"),
    "scheduler.type": ("StepLRR", "unknown scheduler 'StepLRR' (did you mean 'StepLR'?)"),
    "hooks.shadow.type": ("emma", "unknown hook 'emma' (did you mean 'ema'?)"),
    "hooks.emma": (True, "unknown hook 'emma' (did you mean 'ema'?)"),
}
"""Unknown names, and part of the message, by path."""

MISTAKES: dict[str, dict[str, Any]] = {
    "a field": {"batch_size": -1},
    "a field of a hook": {"hooks.ema": {"decay": 2}},
    "a hook's priority": {"hooks.ema": {"priority": 1000}},
    "a conflict": {"scaler": {"init_scale": 2.0}},
    "a conflict of a hook": {"hooks.early_stopping": {"monitor": "test/loss", "mode": "min"}},
    "a change": {"changes": [{"at": "5 epochs", "set": {"optimizer.lr": 0.2}}]},
    "no length": {"epochs": None},
}
"""Values that are wrong whatever the classes are, by path."""


def found(data: dict[str, Any]) -> set[str]:
    """The problems of an experiment."""
    problems: list[Problem] = []
    collect_problems(problems, make_experiment, data)
    assert len(problems) == len(set(problems))
    return set(map(str, problems))


def changed(data: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    for path, value in values.items():
        data = with_value(data, path, value)
    return data


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("path", NAMES)
def test_unknown_name_hides_no_other_mistake(path: str, mistake: str) -> None:
    name, message = NAMES[path]
    wrong = changed(EXPERIMENT, MISTAKES[mistake])
    others = found(wrong)
    assert len(others) >= 1
    (unknown,) = found(changed(wrong, {path: name})) - others
    assert message in unknown
    assert found(changed(wrong, {path: name})) == {unknown, *others}


def test_all_unknown_names_are_reported_at_once() -> None:
    names = {path: name for path, (name, _) in NAMES.items()}
    told = found(changed(EXPERIMENT, names))
    assert len(told) == len(NAMES)
    for _, message in NAMES.values():
        assert any(message in problem for problem in told)


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (
            [{"type": "StepLRR", "end": "1 epochs"}, {"type": "Cosine"}],
            {"scheduler.0.type", "scheduler.1.type"},
        ),
        ([{"type": "StepLRR", "begin": "x"}], {"scheduler.0.type", "scheduler.0.begin"}),
        ({"type": "LambdaLR"}, {"scheduler.type"}),
        ({"type": "StepLRR", "warmup": "9 epochs"}, {"scheduler.type", "scheduler.warmup"}),
    ],
)
def test_other_keys_beside_an_unknown_scheduler_are_checked(
    scheduler: Any, expected: set[str]
) -> None:
    told = found({**EXPERIMENT, "scheduler": scheduler})
    assert {problem.partition(":")[0] for problem in told} == expected


def test_groups_of_an_unknown_optimizer_are_checked() -> None:
    told = found({**EXPERIMENT, "optimizer": {"type": "SGDD", "groups": [{"lr": 0.1}]}})
    assert {problem.partition(":")[0] for problem in told} == {
        "optimizer.type",
        "optimizer.groups.0.match",
    }


def test_unknown_task_allows_whatever_it_may_define() -> None:
    for more in (
        {"optimizer": {"lr": 0.1, "anything": 3}},
        {"optimizer": {"type": "task", "anything": 3}},
        {"scheduler": {"anything": 3}},
        {
            "optimizers": {"a": {"type": "SGD"}, "b": {"type": "Adam"}},
            "optimizer": None,
            "scheduler": None,
        },
        {"task_args": {"anything": 3}},
        {"hooks": {"checkpoint": {"best": "val/anything", "mode": "max"}}},
    ):
        (told,) = found({**EXPERIMENT, **more, "task": f"{HERE}:Nothing"})
        assert told.startswith("task: module ")


def test_required_hook_is_known_by_its_name() -> None:
    assert (
        found({**EXPERIMENT, "task": f"{HERE}:Choosy", "hooks": {"shadow": {"keep": 1}}}) == set()
    )


# Sweeps


@pytest.mark.parametrize(
    ("setting", "value", "path"),
    [
        ("search", "gridd", "sweep.search.type"),
        ("scheduler", "ashaa", "sweep.scheduler.type"),
        ("engine", "gangg", "sweep.engine"),
        ("serch", "grid", "sweep.serch"),
        ("metric", 3, "sweep.metric"),
    ],
)
def test_values_of_a_sweep_are_checked_beside_wrong_settings(
    setting: str, value: Any, path: str
) -> None:
    space = {
        "optimizer.type": {"choice": ["SGD", "Adamm"]},
        "optimizer.lr": {"uniform": [1, 0]},
        "hooks.ema.dekay": {"choice": [0.5]},
    }
    told = found({**EXPERIMENT, "sweep": {"metric": "val/loss", "space": space, setting: value}})
    paths = {problem.partition(": ")[0] for problem in told}
    assert paths == {path, *(f"sweep.space.{name}" for name in space)}


def test_unknown_optimizer_hides_no_problem_of_a_space() -> None:
    sweep = {
        "metric": "val/loss",
        "space": {"hooks.ema.decay": {"choice": [0.5, 3]}, "batch_size": {"choice": [0]}},
    }
    others = found({**EXPERIMENT, "sweep": sweep})
    assert len(others) == 2
    told = found(changed({**EXPERIMENT, "sweep": sweep}, {"optimizer.type": "SGDD"}))
    assert told - others == {"optimizer.type: unknown optimizer 'SGDD' (did you mean 'SGD'?)"}
    assert others < told


# Data


def test_data_is_checked_beside_an_unknown_name(tmp_path: Path) -> None:
    wrong = {**EXPERIMENT, "task": f"{HERE}:Typo"}
    file = tmp_path / "line.yaml"
    file.write_text(yaml.safe_dump(changed(wrong, {"optimizer.type": "SGDD", "batch_size": -1})))
    with pytest.raises(ConfigError) as caught:
        load_checked(file)
    assert [problem.path for problem in caught.value.problems] == [
        "batch_size",
        "optimizer.type",
        "task",
    ]
    assert "must return 'train', got tran" in str(caught.value)

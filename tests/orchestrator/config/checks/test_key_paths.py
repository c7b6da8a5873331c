"""A key that was written one level too high is told with the place where it belongs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orchestrator.config.checks.key_paths import key_paths
from orchestrator.config.load import experiment_from_dict, to_dict
from orchestrator.errors import ConfigError, Problem
from tests.orchestrator.config.samples import HERE

BASE: dict[str, Any] = {"name": "line", "task": f"{HERE}:Line", "epochs": 1}
FULL = {
    **BASE,
    "optimizer": {"type": "Adam", "lr": 0.1, "weight_decay": 0.01},
    "scheduler": {"type": "StepLR", "step_size": 2},
    "hooks": {"ema": {"decay": 0.9}, "checkpoint": {"keep": 2}},
}


def leaves(value: Any, path: str = "") -> list[str]:
    if not isinstance(value, dict) or not value:
        return [path]
    return [leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}" if path else key)]


def problem_at(data: dict[str, Any], path: str) -> Problem:
    with pytest.raises(ConfigError) as refused:
        experiment_from_dict(data)
    found = [problem for problem in refused.value.problems if problem.path == path]
    assert found, str(refused.value)
    return found[0]


def raised(path: str) -> tuple[dict[str, Any], str]:
    """The experiment with a key one level above its place, and where it is then."""
    *above, _, key = path.split(".")
    data: dict[str, Any] = {**FULL, "hooks": dict(FULL["hooks"])}
    place = data
    for part in above:
        place[part] = dict(place.get(part) or {})
        place = place[part]
    place[key] = 3
    return data, ".".join([*above, key])


WRITTEN = [path for path in leaves(to_dict(experiment_from_dict(FULL))) if "." in path]
KNOWN = {path.rpartition(".")[2] for path in key_paths() if "." not in path}


@pytest.mark.parametrize("path", [path for path in WRITTEN if path.rpartition(".")[2] not in KNOWN])
def test_each_key_of_an_experiment_one_level_too_high_is_told_where_it_belongs(path: str) -> None:
    data, wrong = raised(path)
    if path.startswith("hooks.") and path.rpartition(".")[2] in data["hooks"]:
        pytest.skip("a hook is called so")
    suggestion = problem_at(data, wrong).suggestion or ""
    key, parent = path.rpartition(".")[2], wrong.rpartition(".")[0]
    if "scaler: {init_scale," in suggestion:  # other systems call it so, and more is said
        return
    assert suggestion.startswith("did you mean '")
    places = suggestion.split("'")[1::2]
    assert all(place.endswith(f".{key}") and place.startswith(parent) for place in places)
    if not path.startswith("hooks.") and len(places) < 3:
        assert path in places


def test_the_rate_is_the_optimizers() -> None:
    assert problem_at({**BASE, "lr": 0.1}, "lr").suggestion == "did you mean 'optimizer.lr'?"
    assert problem_at({**BASE, "num_workers": 2}, "num_workers").suggestion == "did you mean 'loader.num_workers'?"
    assert problem_at({**BASE, "epoch": 2}, "epoch").suggestion == "did you mean 'epochs'?"


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_a_wrong_key_of_a_named_optimizer_lists_its_own_keys_too(kind: str) -> None:
    own = [name for name in torch.optim.__dict__[kind].__init__.__annotations__ if name not in ("params", "return")]
    data = {**BASE, "optimizers": {"d": {"type": kind, "zzz": 1}}}
    listed = (problem_at(data, "optimizers.d.zzz").suggestion or "").removeprefix("known: ").split(", ")
    assert {"params", "scheduler", "groups", *own} <= {*listed}
    near = {**BASE, "optimizers": {"d": {"type": kind, "param": "*"}}}
    assert problem_at(near, "optimizers.d.param").suggestion == "did you mean 'params'?"

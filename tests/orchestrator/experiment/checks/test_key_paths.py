"""A key in the wrong place is refused, and the right place suggested."""

from typing import Any

import pytest
import torch

from orchestrator.errors import ConfigError
from orchestrator.experiment.checks.key_paths import find_key
from orchestrator.experiment.load import make_experiment, to_dict
from orchestrator.experiment.sections.experiment import Experiment
from tests.orchestrator.experiment.samples import HERE

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
    found: list[str] = []
    for key, inner in value.items():
        found += leaves(inner, f"{path}.{key}" if path else key)
    return found


def suggestion_at(path: str, data: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        make_experiment(data)
    return next(
        problem.suggestion or "" for problem in caught.value.problems if problem.path == path
    )


NESTED = [path for path in leaves(to_dict(make_experiment(FULL))) if "." in path]


# A key directly below `hooks` is the name of a hook.
MISPLACED = [
    path for path in NESTED if path.rpartition(".")[2] not in {*Experiment.model_fields, "type"}
]


@pytest.mark.parametrize("path", [path for path in MISPLACED if not path.startswith("hooks.")])
def test_key_one_level_too_high_is_suggested_where_it_belongs(path: str) -> None:
    *above, _, key = path.split(".")
    wrong = ".".join([*above, key])
    data: dict[str, Any] = {**FULL, "hooks": dict(FULL["hooks"])}
    parent = data
    for name in above:
        parent[name] = dict(parent.get(name) or {})
        parent = parent[name]
    parent[key] = 3
    suggestion = suggestion_at(wrong, data)
    if "scaler: {init_scale," in suggestion:  # a key of other systems too, with advice of its own
        return
    places = suggestion.removeprefix("did you mean ").split("'")[1::2]
    assert places
    assert all(place.endswith(f".{key}") and place.startswith(".".join(above)) for place in places)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_unknown_key_of_a_named_optimizer_lists_all_of_its_keys(kind: str) -> None:
    own = [
        name
        for name in torch.optim.__dict__[kind].__init__.__annotations__
        if name not in ("params", "return")
    ]
    known = suggestion_at(
        "optimizers.d.zzz", {**BASE, "optimizers": {"d": {"type": kind, "zzz": 1}}}
    )
    assert {"params", "scheduler", "groups", *own} <= {
        *known.removeprefix(f"known to {kind}: ").split(", ")
    }
    near = suggestion_at(
        "optimizers.d.param", {**BASE, "optimizers": {"d": {"type": kind, "param": "*"}}}
    )
    assert near == "did you mean 'params'?"


@pytest.mark.parametrize("key", ["params", "set", "grid", "at"])
def test_keys_below_a_name_or_an_index_are_not_suggested_without_it(key: str) -> None:
    """There is no `optimizers.params`, but an `optimizers.<name>.params`."""
    suggestion = suggestion_at(key, {**BASE, key: 3})
    for place in ("optimizers.", "changes.", "sweep.space."):
        assert place not in suggestion


def test_domain_beside_the_space_is_not_suggested_below_it() -> None:
    sweep = {"metric": "val/loss", "grid": {"optimizer.lr": [0.1]}}
    assert "sweep.space.grid" not in suggestion_at("sweep.grid", {**BASE, "sweep": sweep})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("epochs", "epochs"),
        ("lr", "optimizer.lr"),
        ("decay", "hooks.ema.decay"),
        ("type", None),  # of the optimizer and of the scheduler
        ("params", None),  # only below the name of an optimizer
        ("zzz", None),
    ],
)
def test_key_is_found_below_others_if_it_is_the_only_one(name: str, key: str | None) -> None:
    assert find_key(name) == key

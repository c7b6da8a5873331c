"""The JSON Schema of experiment files: it accepts and refuses what the loader does."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hooks import HOOKS
from orchestrator.experiment.json_schema import make_experiment_schema
from orchestrator.experiment.load import load_experiment, to_dict
from orchestrator.experiment.yaml.reader import read_yaml
from tests.orchestrator.experiment.samples import HERE, Shadow

SHIPPED = sorted((Path(__file__).parents[3] / "experiments").glob("*.yaml"))


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return make_experiment_schema({**HOOKS, "shadow": Shadow})


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(schema)


def line(**more: Any) -> dict[str, Any]:
    return {"name": "line", "task": f"{HERE}:Line", "epochs": 1, **more}


def test_schema_has_every_hook_with_its_docs(schema: dict[str, Any]) -> None:
    assert set(schema["properties"]["hooks"]["properties"]) == {*HOOKS, "shadow"}
    shadow = schema["$defs"]["hook_shadow"]
    assert shadow["description"] == "Follows the weights.\n\nAt a distance."
    assert shadow["properties"]["decay"]["description"] == "Fraction that is kept."
    assert (shadow["properties"]["decay"]["minimum"], shadow["properties"]["decay"]["maximum"]) == (
        0,
        1,
    )
    assert schema["properties"]["batch_size"]["description"] == "Samples in a batch of each rank."


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_schema_accepts_shipped_experiments_and_their_resolved_form(
    validator: Draft202012Validator, path: Path
) -> None:
    assert list(validator.iter_errors(read_yaml(path).data)) == []
    assert list(validator.iter_errors(to_dict(load_experiment(path)))) == []


@pytest.mark.parametrize(
    "data",
    [
        line(),
        line(epochs=None, steps=5),
        line(
            optimizer={"groups": ["no_decay", {"match": "x.*", "lr_scale": 2}]},
            scheduler=[{"type": "StepLR", "begin": "5 steps", "step_size": 2}],
        ),
        line(hooks={"shadow": None, "console": False, "perf_stats": True, "checkpoint": {}}),
        line(hooks={"shadow": {"decay": 1, "every": "100 steps", "priority": "low"}}),
        line(hooks={"shadow": {"priority": 20}, "slow": {"type": "shadow", "priority": "LOW"}}),
        line(hooks={"mine": {"type": "pack.module:Class", "anything": 1}}),
        line(hooks={"ema": {"type": "shadow", "decay": 1}}),
        {
            "base": "line.yaml",
            "sweep": {
                "metric": "x",
                "mode": "max",
                "space": {"seed": {"choice": [1, 2]}, "hooks.a.b": {"uniform": [0, 1]}},
            },
        },
    ],
)
def test_schema_accepts_valid_experiments(
    validator: Draft202012Validator, data: dict[str, Any]
) -> None:
    assert list(validator.iter_errors(data)) == []


@pytest.mark.parametrize(
    "data",
    [
        line(hooks={"shadow": {"decay": 1.2}}),
        line(hooks={"shadow": {"every": "1 hour"}}),
        line(hooks={"slow": {"type": "shadow", "decoy": 1}}),
        line(hooks={"slow": {"type": "shadwo"}}),
        line(hooks={"ema": {"type": "shadow", "gamma": 1}}),
        line(hooks={"ema": {"decoy": 1}}),
        line(batchsize=1),
        line(steps=5),
        line(workers={"count": 0}),
        {"name": "x"},
        line(sweep={"metric": "x", "space": {"seed": {"choice": [1], "grid": [1]}}}),
        line(sweep={"metric": "x", "space": {"seed": {"uniform": [1]}}}),
    ],
)
def test_schema_refuses_invalid_experiments(
    validator: Draft202012Validator, data: dict[str, Any]
) -> None:
    assert list(validator.iter_errors(data))

"""Overrides: `key=value` over the values of the file."""

from typing import Any

import pytest

from orchestrator.experiment.yaml.document import Document
from orchestrator.experiment.yaml.overrides import add_overrides
from orchestrator.experiment.yaml.reader import parse_yaml
from orchestrator.experiment.yaml.source import ExperimentSource

TEXT = """\
name: x
optimizer: {type: SGD, lr: 0.1}
hooks:
  checkpoint: false
  ema: {decay: 0.5, every: 1}
"""


def overridden(*overrides: str) -> Document:
    document = parse_yaml(TEXT, "x.yaml")
    source = ExperimentSource(document.data, add_overrides(document, overrides))
    document.data, problems = source.merge()
    document.problems.extend(map(document.locate, problems))
    return document


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("optimizer.lr=5e-2", ["optimizer", "lr"], 0.05),
        ("hooks.ema=null", ["hooks", "ema"], None),
        ("hooks.checkpoint=true", ["hooks", "checkpoint"], True),
        ("hooks.checkpoint.every=2", ["hooks", "checkpoint"], {"every": 2}),
        ("scheduler.type=StepLR", ["scheduler"], {"type": "StepLR"}),
        (
            "optimizer={type: Adam, betas: [0.5, 0.9]}",
            ["optimizer"],
            {"type": "Adam", "betas": [0.5, 0.9]},
        ),
        ("name=a=b", ["name"], "a=b"),
        (
            "sweep.space.hooks.ema.decay={choice: [1]}",
            ["sweep", "space", "hooks.ema.decay"],
            {"choice": [1]},
        ),
    ],
)
def test_values_are_yaml(override: str, path: list[str], value: Any) -> None:
    document = overridden(override)
    found: Any = document.data
    for key in path:
        found = found[key]
    assert found == value
    assert not document.problems


def test_override_keeps_the_other_keys() -> None:
    document = overridden("hooks.ema.decay=0.9")
    assert document.data["hooks"] == {"checkpoint": False, "ema": {"decay": 0.9, "every": 1}}


def test_later_overrides_win() -> None:
    assert overridden("optimizer.lr=1", "optimizer.lr=2").data["optimizer"]["lr"] == 2


@pytest.mark.parametrize("override", ["", "lr", "=1", "a b=1", ".lr=1", "a..b=1", "a.=1"])
def test_malformed_override_is_reported(override: str) -> None:
    (problem,) = overridden(override).problems
    assert problem.file == f"override '{override}'"
    assert "key=value" in problem.message


def test_problems_quote_the_override() -> None:
    document = overridden("optimizer.lr=[1", "optimizer.lr.deep=1", "hooks={a: 1, a: 2}")
    assert [str(problem).split(": ")[0] for problem in document.problems] == [
        "override 'optimizer.lr=[1'",
        "override 'hooks={a",
        "override 'optimizer.lr.deep=1'",
    ]
    assert "optimizer.lr is 0.1, not a mapping" in document.problems[2].message
    assert all(problem.line is None for problem in document.problems)


def test_locations_move_to_the_override() -> None:
    document = overridden("hooks.ema={decay: 2}", "scheduler.type=StepLR")
    where = "override 'hooks.ema={decay: 2}'"
    assert [document.find_location(path) for path in ("hooks.ema", "hooks.ema.decay")] == [
        (where, None),
        (where, None),
    ]
    assert document.find_location("scheduler.gamma") == ("override 'scheduler.type=StepLR'", None)
    assert document.find_location("hooks.checkpoint") == ("x.yaml", 4)

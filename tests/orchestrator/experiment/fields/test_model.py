"""Models of what a file may say."""

from dataclasses import dataclass, field, make_dataclass
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.construction import construct


@dataclass
class Tree:
    width: int = 1
    branches: "list[Tree]" = field(default_factory=list)


def find_problems(hint: Any, value: Any, name: str) -> list[str]:
    """Return the paths of the problems of a value for a field of this type."""
    with pytest.raises(ConfigError) as caught:
        construct(make_dataclass("Holder", [(name, hint)]), {name: value}, "")
    return [problem.path for problem in caught.value.problems]


@pytest.mark.parametrize("name", ["value", "default", "metadata", "type"])
@pytest.mark.parametrize(
    ("hint", "value", "path"),
    [
        (int, "1", ""),
        (int, 1.0, ""),
        (int, True, ""),
        (float, "1", ""),
        (float, False, ""),
        (bool, 1, ""),
        (bool, "true", ""),
        (int | None, "1", ""),
        (tuple[int, ...], [1, "2"], ".1"),
        (list[float], [True], ".0"),
        (dict[int, float], {"1": "2"}, ".1"),
        (Tree, {"width": "1"}, ".width"),
        (Tree, {"branches": [{"branches": [{"width": 1.5}]}]}, ".branches.0.branches.0.width"),
    ],
)
def test_numbers_are_not_converted_at_any_depth(
    hint: Any, value: Any, path: str, name: str
) -> None:
    assert find_problems(hint, value, name) == [f"{name}{path}"]


def test_default_that_looks_like_a_schema_stays() -> None:
    cls = make_dataclass(
        "Holder", [("value", dict, field(default_factory=lambda: {"type": "int"}))]
    )

    made, settings = construct(cls, {}, "")

    assert made.value == {"type": "int"}
    assert settings == {"value": {"type": "int"}}

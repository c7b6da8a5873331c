"""The wording of pydantic's errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Len, Lt, MultipleOf
from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.config.python.wording import convert_errors


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    depth: int = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    low: Annotated[float, Gt(0)] = 1
    high: Annotated[int, Ge(2), Lt(10)] = 2
    even: Annotated[int, MultipleOf(2)] = 2
    either: int | str | None = None
    inner: Inner | None = None
    kind: Literal["red", "green", 3] = "red"
    several: Annotated[list[float], Len(1, 2)] = [1]
    by_name: dict[str, int] = {}
    flag: bool = False
    parts: list[Inner] = []


def messages(**values: Any) -> dict[str, str]:
    import json

    try:
        Outer.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        return {problem.path: str(problem) for problem in convert_errors(error, Outer, values, "")}
    return {}


@pytest.mark.parametrize(
    ("values", "path", "message"),
    [
        ({"low": float("inf")}, "low", "low: must be a finite number, got inf"),
        ({"even": 3}, "even", "even: must be a multiple of 2, got 3"),
        ({"either": [1]}, "either", "either: must be a whole number or a string, got [1]"),
        ({"kind": "gren"}, "kind", "kind: must be 'red', 'green' or 3, got 'gren' (did you mean 'green'?)"),
        ({"several": [1, 2, 3]}, "several", "several: must have at most 2 entries, got [1, 2, 3]"),
        ({"by_name": {"a.b": "x"}}, "by_name.a.b", "by_name.a.b: must be a whole number, got 'x'"),
        (
            {"qqq": 1},
            "qqq",
            "qqq: unknown key (known: low, high, even, either, inner, kind, several, by_name, flag, parts)",
        ),
        ({"parts": [{"depht": 3}]}, "parts.0.depht", "parts.0.depht: unknown key (did you mean 'depth'?)"),
    ],
)
def test_pydantic_errors_are_reworded(values: dict[str, Any], path: str, message: str) -> None:
    assert messages(**values) == {path: message}


def test_long_values_are_shortened() -> None:
    assert messages(flag="x" * 500)["flag"].endswith("x...")
    assert len(messages(flag="x" * 500)["flag"]) < 130

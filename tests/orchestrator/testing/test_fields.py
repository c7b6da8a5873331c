from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import Field

from hooks import Hook, Interval
from orchestrator.config.python.parameters import construct
from orchestrator.testing.fields import field_values, for_each


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


@dataclass
class Everything(Hook):
    """A field of each kind."""

    share: Annotated[float, Ge(0), Lt(1)] = 0.5
    size: Annotated[float, Gt(0)] = 1.0
    count: Annotated[int, Gt(2), Le(5)] = 3
    below: Annotated[int, Lt(0)] = -1
    limit: Annotated[int, Field(ge=100)] | None = None
    mode: Literal["min", "max"] = "min"
    side: Side = Side.LEFT
    on: bool = False
    every: Interval = Interval(1)
    places: Annotated[list[Annotated[int, Ge(0)]], MinLen(1)] = field(default_factory=lambda: [0])
    pair: tuple[int, float] = (0, 0.0)
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def drawn(given: dict[str, Any], among: Collection[str] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for_each(60, found.append, field_values(Everything, given, among))
    return found


def test_values_are_drawn_within_bounds_and_are_what_a_config_takes() -> None:
    found = drawn({})
    for values in found:
        construct(Everything, values, "everything")
    assert {name for values in found for name in values} == {*Everything.__annotations__} - {"name", "options"}
    assert {values["count"] for values in found} == {3, 4, 5}
    assert {values["limit"] is None for values in found} == {values["on"] for values in found} == {True, False}
    assert {values["side"] for values in found} == {"left", "right"}
    assert min(values["share"] for values in found) == 0
    assert all(values["size"] > 0 and values["below"] < 0 and values["places"] for values in found)


def test_they_are_the_same_each_time() -> None:
    assert drawn({}) == drawn({})


def test_what_is_given_is_not_drawn_nor_what_is_not_among_the_names() -> None:
    assert all(values.keys() == {"mode"} for values in drawn({"share": 0.1}, {"share", "mode"}))

"""Instances of a class, made of what a config gives to it."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import AfterValidator

from hooks import Interval
from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.construction import construct
from tests.orchestrator.experiment.samples import Shadow


def problems_of(cls: type, values: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        construct(cls, values, "x")
    return {problem.path: problem.message for problem in caught.value.problems}


def test_values_have_the_type_of_their_field() -> None:
    hook, settings = construct(Shadow, {"decay": 1, "every": "100 steps", "tags": ["a"]}, "x")
    assert (hook.decay, hook.every, hook.tags) == (1.0, Interval(100, "steps"), ["a"])
    assert settings == {
        "decay": 1.0,
        "every": "100 steps",
        "keep": 3,
        "mode": "near",
        "tags": ["a"],
    }


def test_other_errors_of_the_class_keep_their_type() -> None:
    @dataclass
    class Fails:
        def __post_init__(self) -> None:
            raise KeyError("gone")

    (told,) = problems_of(Fails, {}).values()
    assert re.fullmatch(rf"KeyError: 'gone' \({__file__}:\d+\)", told)


def test_any_error_of_a_validator_is_told_at_its_key() -> None:
    def refuse(value: int) -> int:
        raise RuntimeError("no even number")

    @dataclass
    class Odd:
        width: int
        count: Annotated[int, AfterValidator(refuse)]

    told = problems_of(Odd, {"width": 3, "count": 4})
    assert list(told) == ["x.count"]
    assert re.fullmatch(rf"RuntimeError: no even number \({__file__}:\d+\)", told["x.count"])


def test_numpy_scalars_and_paths_are_plain_data() -> None:
    hook, settings = construct(
        Shadow, {"decay": np.float64(0.25), "keep": np.int64(4), "tags": [Path("a/b")]}, "x"
    )
    assert (hook.decay, hook.keep, hook.tags) == (0.25, 4, ["a/b"])
    assert type(settings["keep"]) is int
    assert "cannot be saved as YAML" in problems_of(Shadow, {"tags": [object()]})["x"]


def test_parameters_may_have_names_of_pydantic_methods() -> None:
    @dataclass
    class StreamTransfer:
        copy: int = 1
        json: list[int] = field(default_factory=list)

    assert construct(StreamTransfer, {"copy": 2, "json": [1]}, "x")[1] == {"copy": 2, "json": [1]}


@dataclass
class Placed:
    """Its default needs a variable of the environment."""

    folder: str = field(default_factory=lambda: os.environ["NO_SUCH_VARIABLE"])
    size: int = 1


def test_a_default_that_cannot_be_made_is_needed_only_without_a_value() -> None:
    made, settings = construct(Placed, {"folder": "/data"}, "x")
    assert made == Placed("/data", 1)
    assert settings == {"folder": "/data", "size": 1}
    (told,) = problems_of(Placed, {}).values()
    assert re.fullmatch(rf"KeyError: 'NO_SUCH_VARIABLE' \({__file__}:\d+\)", told)


@dataclass
class Span:
    """Cannot be made of its own fields once it is made."""

    low: float = 1.0
    high: float = 2.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise TypeError("low > high")
        self.low, self.high = self.high, self.low


@dataclass
class Spanned:
    span: Span = field(default_factory=Span)


def test_a_nested_class_that_refuses_its_values_is_reported() -> None:
    (told,) = problems_of(Spanned, {"span": {"low": 3.0, "high": 1.0}}).values()
    assert re.fullmatch(rf"TypeError: low > high \({__file__}:\d+\)", told)


def test_a_default_that_the_class_refuses_to_read_back_is_left_to_it() -> None:
    made, settings = construct(Spanned, {}, "x")
    assert (made.span.low, made.span.high) == (2.0, 1.0)
    assert settings == {}

"""Instances of a class, made of what a config gives to it."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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

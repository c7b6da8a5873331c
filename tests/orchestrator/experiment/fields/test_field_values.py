"""Values of fields: a class gets from a file what was set in Python, or the value is refused."""

import math
import os
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PosixPath
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import numpy
import pytest
import torch
from pydantic import BeforeValidator

from orchestrator import ConfigError
from orchestrator.experiment.fields.construction import construct
from orchestrator.experiment.fields.plain_data import convert_fields
from orchestrator.experiment.yaml.reader import load_yaml
from orchestrator.experiment.yaml.writer import dump_yaml


class Norm(Enum):
    BATCH = "batch"
    LAYER = "layer"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mode(StrEnum):
    FAST = "fast"


class Size(NamedTuple):
    height: int
    width: int


@dataclass
class Inner:
    width: int = 3
    names: tuple[str, ...] = ("a",)
    extra: Any = None


def holder(hint: Any, **options: Any) -> type:
    """A dataclass with one field, `value`."""
    return make_dataclass("Holder", [("value", hint, field(**options))])


def through_a_file(instance: Any) -> Any:
    """The `value` of the instance that another process makes from the experiment file."""
    cls = type(instance)
    written = load_yaml(dump_yaml(convert_fields(instance, "")), "file")
    made, resolved = construct(cls, written, "")
    again, _ = construct(cls, load_yaml(dump_yaml(resolved), "file"), "")
    assert again == made or made != made or math.isnan(made.value)
    return made.value


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (dict[int, float], {0: 1.0, 3: 2.5}),
        (dict[bool, int], {True: 1, False: 0}),
        (dict[float, int], {0.5: 1}),
        (dict[Norm, int], {Norm.LAYER: 1}),
        (dict[str, dict[int, int]], {"a": {1: 2}}),
        (list[dict[int, str]], [{1: "x"}]),
        (Mapping[int, str], {1: "x"}),
        (dict, {"a": [1, None, 2.5, True, "x"]}),
        (Any, {"a": {"b": []}}),
        (object, [1, 2.0]),
        (tuple, (3, 4)),
        (tuple[int, ...], (3, 4)),
        (tuple[tuple[int, int], ...], ((1, 2), (3, 4))),
        (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})),
        (deque[int], deque([1, 2])),
        (Size, Size(3, 4)),
        (Norm, Norm.LAYER),
        (Level, Level.HIGH),
        (Mode, Mode.FAST),
        (Path, Path("a/b")),
        (date, date(2026, 1, 2)),
        (datetime, NOW),
        (timedelta, timedelta(days=1, milliseconds=1)),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (complex, 1 + 2j),
        (bytes, b"abc"),
        (Inner, Inner(5, ("x", "y"), [1])),
        (list[Inner], [Inner(5), Inner(6)]),
        (float, math.inf),
        (int, 2**63),
        (int | str, "12"),
        (float | None, None),
        (str, "tab\there ünï 🦙 #x: y\u2028"),
    ],
)
def test_values_arrive_as_they_were_set(hint: Any, value: Any) -> None:
    arrived = through_a_file(holder(hint)(value))
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (float, 1, 1.0),
        (list[int], (1, 2), [1, 2]),
        (dict[str, int], OrderedDict(a=1), {"a": 1}),
        (Level, 2, Level.HIGH),
        (str, Path("a/b"), "a/b"),
        (int, Level.HIGH, 2),
        (str, Mode.FAST, "fast"),
        (int, numpy.int64(3), 3),
        (float, numpy.float32(0.5), 0.5),
        (Any, numpy.float32(0.5), 0.5),
        (list[float], [numpy.float64(0.1), 1], [0.1, 1.0]),
        (float, torch.tensor(0.5), 0.5),
    ],
)
def test_values_take_the_type_that_the_field_declares(hint: Any, value: Any, expected: Any) -> None:
    arrived = through_a_file(holder(hint)(value))
    assert arrived == expected
    assert type(arrived) is type(expected)


Pair = namedtuple("Pair", "one two")  # without types


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (dict, {0: 1.0, 3: 2.5}),
        (Any, {0: 1.0}),
        (Any, {"a": {None: 1}}),
        (Any, {True: 1}),
        (Any, {0.5: 1}),
        (dict[str, float], {0: 1.0}),
        (dict[tuple[int, int], int], {(1, 2): 3}),
        (Any, (3, 4)),
        (Any, [(1, 2)]),
        (list, [(1, 2)]),
        (Sequence[int], (1, 2)),
        (Any, {1, 2}),
        (Any, Pair(1, 2)),
        (Any, Size(1, 2)),
        (Any, Norm.LAYER),
        (Any, Level.HIGH),
        (Any, Mode.FAST),
        (Any, Path("a")),
        (Any, [PosixPath("a")]),
        (Any, NOW),
        (Any, Inner()),
        (Inner, Inner(extra=(1, 2))),
        (Any, OrderedDict(a=1)),
        (Any, defaultdict(list)),
        (Any, b"abc"),
        (bytes, b"\xff"),
        (Any, 1j),
        (Any, torch.float16),
        (torch.dtype, torch.float16),
        (Any, torch.tensor(0.5)),
        (Any, torch.tensor([0.5])),
        (Any, numpy.array([1, 2])),
        (Any, numpy.array([1])),
        (Any, iter([1, 2])),
        (Any, print),
        (Callable[[], None], print),
        (float, math.nan),
        (list[float], [math.nan]),
        (int, 2**64),
        (Any, {"a": -(2**64)}),
        (str, "zero \0"),
        (Any, ["surrogate \ud800"]),
        (Any, {"line\nend": 1}),
    ],
)
def test_values_that_would_change_are_refused(hint: Any, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        convert_fields(holder(hint)(value), "task_args")
    (problem,) = caught.value.problems
    assert problem.path == "task_args.value"


def test_refusal_says_what_would_arrive_and_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        convert_fields(holder(dict)({0: 1.5}), "task_args")
    assert str(caught.value) == (
        "task_args.value: would arrive in the workers as {'0': 1.5}, got {0: 1.5} (annotate the field with the"
        " value's type, such as tuple[int, int] or dict[int, float])"
    )


@pytest.mark.parametrize(
    ("hint", "default"),
    [
        (Any, (3, 4)),
        (dict, {0: 1.0}),
        (Sequence[int], (64, 64)),
        (float, math.nan),
        (Any, print),
        (Any, Norm.LAYER),
        (torch.dtype, torch.float16),
        (int, 2**70),
    ],
)
def test_defaults_are_left_to_the_class(hint: Any, default: Any) -> None:
    cls = holder(hint, default_factory=lambda: default)
    made, settings = construct(cls, {}, "")
    assert made.value is default
    assert settings == {}
    assert convert_fields(cls(), "") == {}
    assert [one.name for one in fields(cls)] == ["value"]
    assert through_a_file(cls()) is default


def test_a_default_that_cannot_be_made_is_no_value() -> None:
    cls = holder(str, default_factory=lambda: os.environ["NO_SUCH_VARIABLE"])
    assert convert_fields(cls("/data"), "", with_defaults=False) == {"value": "/data"}


def test_an_error_of_a_nested_class_that_is_read_back_is_told() -> None:
    @dataclass
    class Once:
        count: int

        def __post_init__(self) -> None:
            if self.count > 1:
                raise TypeError("only once")
            self.count += 1

    with pytest.raises(ConfigError, match="cannot be read back from YAML: TypeError: only once"):
        convert_fields(holder(Once)(Once(1)), "task_args")


def test_a_validator_may_refuse_a_value_in_python_with_any_error() -> None:
    """A file holds the path as text, which the validator accepts."""

    def require_text(value: Any) -> Any:
        if not isinstance(value, str):
            raise RuntimeError("no text")
        return value

    instance = holder(Annotated[Any, BeforeValidator(require_text)])(Path("data"))
    assert through_a_file(instance) == "data"

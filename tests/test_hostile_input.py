"""What strangers and typing errors may write, drawn by hypothesis: each text gives a result, or our error with its
place.

`HOOKYARD_FUZZ=5000 pytest tests/test_hostile_input.py` draws as many examples of each, others every time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.config.load import experiment_from_dict, load_experiment, to_yaml
from orchestrator.config.text.reader import parse_yaml
from orchestrator.errors import ConfigError, UsageError
from orchestrator.stats.read.query import Rows, matching_rows
from tests.orchestrator.config.samples import HERE, TEXT

T = TypeVar("T")
LONG = int(os.environ.get("HOOKYARD_FUZZ", 0))
hostile = settings(
    max_examples=LONG or 60,
    derandomize=not LONG,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**31, 2**63, 2**64, 2**80, -(2**63) - 1, 10**400, 1e308, -0.0])
)
WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            ".",
            "..",
            "../../up",
            "/etc/passwd",
            "-rf",
            "a" * 5000,
            "a." * 100,
            "\0",
            "\x1b[2J",
            "\ud800",
            "null",
            ".nan",
            "<<",
            "os:getcwd",
        ]
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=10,
)
KEYS = st.sampled_from(
    [
        "name",
        "task",
        "task_args",
        "epochs",
        "steps",
        "batch_size",
        "optimizer",
        "scheduler",
        "precision",
        "accumulate",
        "validate_every",
        "seed",
        "max_failures",
        "loader",
        "workers",
        "environment",
        "hooks",
        "changes",
        "sweep",
        "base",
        "task_args.width",
        "hooks.ema",
        "hooks.ema.decay",
        "hooks.shadow.type",
        "hooks.checkpoint.every",
        "hooks.checkpoint.best",
        "optimizer.lr",
        "optimizer.type",
        "scheduler.type",
        "loader.num_workers",
        "workers.count",
        "sweep.space",
        "sweep.metric",
        "sweep.space.seed",
        "sweep.scheduler",
        "sweep.trials",
        "sweep.points",
        "changes.0",
        "hooks.distillation.teacher",
        "hooks.feature_probe.data",
    ]
)
YAML = st.lists(
    st.sampled_from(
        [
            "\n",
            "\n  ",
            "\n    ",
            "- ",
            "? ",
            ": ",
            "a: ",
            "b: ",
            "[",
            "]",
            "{",
            "}",
            ", ",
            "&x ",
            "*x",
            "<<: *x",
            "!!int ",
            "!t ",
            "!!python/object:os.system ",
            "'",
            '"',
            "|\n",
            ">-\n",
            "#",
            "---\n",
            "...\n",
            "%YAML 1.1\n",
            "%YAML 99999\n",
            "%TAG ! !\n",
            "\t",
            "\r",
            "\x85",
            "\ufeff",
            "\\x1b",
            "\\UFFFFFFFF",
            "~",
            "1e-3",
            "1e999",
            "9" * 5000,
            "[" * 100,
            ".inf",
            ".nan",
            "0x",
            "name: x\n",
            "epochs: 1\n",
            "hooks: {ema: {decay: 0.5}}\n",
            f"task: {HERE}:Line\n",
        ]
    )
    | st.text(max_size=4),
    max_size=30,
).map("".join)


def result_of(call: Callable[[], T], *, placed: bool = False) -> T | None:
    """What the call gives, or None where it raises our error: every problem says where it is, in a length that can be
    read."""
    try:
        return call()
    except ConfigError as error:
        told = error
    assert told.problems
    assert len(str(told)) < 500_000
    for problem in told.problems:
        assert problem.message
        assert problem.file or not placed, problem
        assert len(problem.message) <= 2000
    return None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "line.yaml").write_text(TEXT)
    return tmp_path / "line.yaml"


@hostile
@given(YAML | st.binary(max_size=60))
def test_any_file(file: Path, content: str | bytes) -> None:
    above = file.with_name("above.yaml")
    above.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    experiment = result_of(lambda: load_experiment(above), placed=True)
    if experiment:
        assert not parse_yaml(to_yaml(experiment), "again").problems


@hostile
@given(KEYS, YAML | VALUES.map(repr))
def test_any_override(file: Path, key: str, text: str) -> None:
    result_of(lambda: load_experiment(file, [f"{key}={text}"]), placed=True)


@hostile
@given(st.text(max_size=20) | st.lists(WORDS, max_size=4).map("=".join))
def test_any_text_as_an_override(file: Path, text: str) -> None:
    result_of(lambda: load_experiment(file, [text]), placed=True)


@hostile
@given(st.dictionaries(KEYS | WORDS, VALUES, max_size=3))
def test_any_plain_data(values: dict[str, Any]) -> None:
    data: dict[str, Any] = {"name": "line", "task": f"{HERE}:Line", "epochs": 1}
    for path, value in values.items():
        *above, last = path.split(".")
        place = data
        for key in above[:2]:
            place = place.setdefault(key, {}) if isinstance(place, dict) else {}
        if isinstance(place, dict):
            place[last] = value
    experiment = result_of(lambda: experiment_from_dict(data))
    if experiment:
        again = experiment_from_dict(parse_yaml(to_yaml(experiment), "again").data)
        assert to_yaml(again) == to_yaml(experiment)


ROWS = pa.table(
    {"rank": [0, 1], "loss": [0.5, None], "phase": ["train", "val"], "skipped": [True, None], "empty": pa.nulls(2)}
)
CONDITIONS = st.lists(
    st.sampled_from(
        [
            "rank",
            "loss",
            "phase",
            "skipped",
            "empty",
            "nothing",
            " ",
            " and ",
            " or ",
            " not ",
            " in ",
            " not in ",
            " is ",
            "==",
            "!=",
            "<",
            ">=",
            "=",
            "(",
            ")",
            "[",
            "]",
            ", ",
            "0",
            "1",
            "-1",
            "2.5",
            "1e999",
            "9" * 5000,
            "9" * 30,
            "None",
            "True",
            "'train'",
            "'",
            '"',
            "\\",
            "'\\ud800'",
            "1j",
            "b''",
            "f'{rank}'",
            "lambda: ",
            "__import__",
            ".",
            ":=",
            "#",
            "\n",
            "\0",
            "not " * 300,
            "(" * 150,
            "-" * 300,
        ]
    )
    | st.text(max_size=2),
    max_size=14,
).map("".join)
SIDES = st.sampled_from(
    [
        "rank",
        "loss",
        "phase",
        "skipped",
        "empty",
        "0",
        "-1",
        "2.5",
        "1e999",
        "2**63",
        str(2**63 - 1),
        "'train'",
        "'\\0'",
        "True",
        "None",
    ]
)
COMPARISONS = st.tuples(SIDES, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "is", "is not"]), SIDES).map(" ".join)
SOUND = st.recursive(
    COMPARISONS,
    lambda inner: st.tuples(inner, st.sampled_from([" and ", " or not ", " or "]), inner).map(
        lambda three: f"({''.join(three)})"
    ),
    max_leaves=8,
)


@hostile
@given(CONDITIONS | SOUND)
def test_any_condition(text: str) -> None:
    said = "where: "
    try:
        assert sum(map(len, matching_rows(Rows.of(ROWS).source, ["rank"], text))) <= 2
    except UsageError as error:
        said = str(error)
    assert said.startswith(("where: ", "there is no column "))
    assert len(said) < 2000


@hostile
@given(WORDS | st.text(st.characters(categories=("L", "N", "P", "Z", "C")), max_size=300))
def test_any_name(name: str) -> None:
    experiment = result_of(lambda: experiment_from_dict({"name": name, "task": f"{HERE}:Line", "epochs": 1}))
    if experiment:
        assert os.path.dirname(os.path.normpath(f"/runs/{experiment.name}")) == "/runs"
        assert name.isprintable()
        assert not name.startswith("-")

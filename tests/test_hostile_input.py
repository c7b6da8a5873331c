"""What strangers and typing errors may write, drawn by hypothesis: each text gives a result, or our
error with its place.

`HOOKYARD_FUZZ=5000 pytest tests/test_hostile_input.py` draws as many examples of each, others every
time.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, UsageError
from orchestrator.experiment.load import load_experiment, make_experiment, to_yaml
from orchestrator.experiment.yaml.reader import parse_yaml
from orchestrator.tables.query import Rows, read_matching_rows
from tests.orchestrator.experiment.samples import HERE, TEXT

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
    st.integers(),
    st.floats(),
    st.sampled_from([2**31, 2**63, 2**64, 2**80, -(2**63) - 1, 10**400, 1e308, -0.0]),
)
WORDS = st.text(max_size=12) | st.sampled_from(
    [
        *". .. ../../up /etc/passwd -rf null .nan << os:getcwd".split(),
        "",
        "a" * 5000,
        "a." * 100,
        "\0",
        "\x1b[2J",
        "\ud800",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=10,
)
KEYS = st.sampled_from(
    """
    name task task_args task_args.width epochs steps batch_size optimizer optimizer.lr optimizer.type scheduler
    scheduler.type precision accumulate validate_every seed max_failures loader loader.num_workers workers workers.count
    environment hooks hooks.ema hooks.ema.decay hooks.shadow.type hooks.checkpoint.every hooks.checkpoint.best
    hooks.distillation.teacher changes changes.0 sweep sweep.space sweep.space.seed
    sweep.metric sweep.scheduler sweep.trials sweep.points base
    """.split()
)
TOKENS = r"""
    [ ] { } &x *x !!int !t !!python/object:os.system ' " | # --- ... %YAML %TAG ~ 1e-3 1e999 .inf .nan 0x \x1b
    \UFFFFFFFF
"""
INDENTS = [
    "\n",
    "\n  ",
    "\n    ",
    "- ",
    "? ",
    ": ",
    "a: ",
    "b: ",
    ", ",
    "<<: *x",
    ">-\n",
    "\t",
    "\r",
    "\x85",
    "\ufeff",
]
LINES = ["%YAML 1.1\n", "%YAML 99999\n", "%TAG ! !\n", "---\n", "...\n", "name: x\n", "epochs: 1\n"]
LINES += ["hooks: {ema: {decay: 0.5}}\n", f"task: {HERE}:Line\n", "9" * 5000, "[" * 100]
YAML = st.lists(
    st.sampled_from([*TOKENS.split(), *INDENTS, *LINES]) | st.text(max_size=4), max_size=30
).map("".join)


def result_of(call: Callable[[], T], *, placed: bool = False) -> T | None:
    """Return the result, or None for an error of ours, whose problems have locations and a readable
    length."""
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
    above.write_bytes(
        content if isinstance(content, bytes) else content.encode(errors="surrogatepass")
    )
    experiment = result_of(lambda: load_experiment(above), placed=True)
    if experiment:
        assert not parse_yaml(to_yaml(experiment), "again").problems


@hostile
@given(
    st.tuples(KEYS, YAML | VALUES.map(repr)).map("=".join)
    | st.lists(WORDS, max_size=4).map("=".join)
)
def test_any_override(file: Path, override: str) -> None:
    result_of(lambda: load_experiment(file, [override]), placed=True)


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
    experiment = result_of(lambda: make_experiment(data))
    if experiment:
        again = make_experiment(parse_yaml(to_yaml(experiment), "again").data)
        assert to_yaml(again) == to_yaml(experiment)


ROWS = pa.table(
    {
        "rank": [0, 1],
        "loss": [0.5, None],
        "phase": ["train", "val"],
        "skipped": [True, None],
        "empty": pa.nulls(2),
    }
)
PARTS = r"""
    rank loss phase skipped empty nothing == != < >= = ( ) [ ] , 0 1 -1 2.5 1e999 None True 'train' ' " \ '\ud800' 1j
    b'' f'{rank}' __import__ . := #
""".split()
PARTS += [" ", " and ", " or ", " not ", " in ", " not in ", " is ", "lambda: ", "\n", "\0"]
PARTS += ["9" * 5000, "9" * 30, "not " * 300, "(" * 150, "-" * 300]
CONDITIONS = st.lists(st.sampled_from(PARTS) | st.text(max_size=2), max_size=14).map("".join)
SIDES = st.sampled_from(
    f"rank loss phase skipped empty 0 -1 2.5 1e999 2**63 {2**63 - 1} 'train' '\\0' True None".split()
)
COMPARISONS = st.tuples(
    SIDES, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "is", "is not"]), SIDES
).map(" ".join)
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
        assert sum(map(len, read_matching_rows(Rows.wrap(ROWS).source, ["rank"], text))) <= 2
    except UsageError as error:
        said = str(error)
    assert said.startswith(("where: ", "there is no column "))
    assert len(said) < 2000


@hostile
@given(WORDS | st.text(st.characters(categories=("L", "N", "P", "Z", "C")), max_size=300))
def test_any_name(name: str) -> None:
    experiment = result_of(
        lambda: make_experiment({"name": name, "task": f"{HERE}:Line", "epochs": 1})
    )
    if experiment:
        assert os.path.dirname(os.path.normpath(f"/runs/{experiment.name}")) == "/runs"
        assert name.isprintable()
        assert not name.startswith("-")

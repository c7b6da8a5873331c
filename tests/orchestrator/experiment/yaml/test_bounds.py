"""Configs that are too large, too deep or harmful are refused with the limit."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.experiment.load import load_experiment, make_experiment
from orchestrator.experiment.yaml.reader import parse_yaml
from tests.orchestrator.experiment.samples import HERE

LINE: Mapping[str, Any] = {"name": "line", "task": f"{HERE}:Line", "epochs": 1}
SCALAR = "x" * 100_000


def refusal(read: Callable[..., Any], *values: Any) -> str:
    """Return the message that a config is refused with, which is never long."""
    with pytest.raises(ConfigError) as caught:
        read(*values)
    assert len(str(caught.value)) < 100_000
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 300 + "]" * 300, "is nested too deeply: at most 64 levels are allowed"),
        (
            "a0: &a0 {}\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 99)),
            "nested too deeply",
        ),
        (
            f"a: &a '{SCALAR}'\nb: [{', '.join(['*a'] * 9000)}]",
            "has more than 524,288 characters once its aliases",
        ),
        (
            f"a0: &a0 '{SCALAR}'\n"
            + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)),
            "has more than 524,288 characters once its aliases are expanded",
        ),
        (r'"a\x1b[2Jb": 1', r"has a key with control characters: 'a\x1b[2Jb'"),
        (r'a: "\ud800"', r"a: contains a character that cannot be encoded: '\ud800'"),
        (r'a: "\UFFFFFFFF"', "invalid YAML: "),
        (f"a: !{'t' * 5000} 1", "which is not allowed; use plain values"),
        ("a: 1\nb: \x00", "x.yaml: invalid YAML: "),
    ],
    ids=range(9),
)
def test_text_beyond_a_limit_is_refused(text: str, message: str) -> None:
    def read() -> None:
        if problems := parse_yaml(text, "x.yaml").problems:
            raise ConfigError(problems)

    assert message in refusal(read)


def test_only_small_regular_utf8_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    with (tmp_path / "large.yaml").open("wb") as large:
        large.truncate(10**10)
    (tmp_path / "utf16.yaml").write_text("name: x", encoding="utf-16")
    for base, expected in (
        ("n" * 5000, "cannot be read: File name too long"),
        ("/dev/zero", "must be an experiment file (YAML), got a device or a pipe"),
        ("fifo.yaml", "got a device or a pipe"),
        (".", "got a folder"),
        ("large.yaml", "has 10,000,000,000 bytes, at most 524,288 are allowed"),
        ("utf16.yaml", "is not UTF-8"),
    ):
        (tmp_path / "above.yaml").write_text(f"epochs: 1\nbase: {base}\n")
        message = refusal(load_experiment, tmp_path / "above.yaml")
        assert f"{tmp_path}/above.yaml:2: base: " in message
        assert expected in message
        assert expected in refusal(load_experiment, tmp_path / base)
    assert "embedded null" in refusal(load_experiment, "a\0b")


def test_override_beyond_a_limit_is_refused(file: Path) -> None:
    for override, message in (
        (f"{'a.' * 300}a=1", "has 301 keys; at most 64 are allowed"),
        (f"task_args.width={'[' * 5_000}", "is nested too deeply"),
    ):
        assert message in refusal(load_experiment, file, [override])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({f"key{n}": 1 for n in range(9000)}, "key50: and 8,950 more problems like this"),
        (
            {"hooks": {"../../up": {"type": "output_csv"}}},
            "hooks.../../up: must be at most 100 letters",
        ),
        ({"hooks": {"h" * 200: {"type": "output_csv"}}}, "must be at most 100 letters"),
        (
            {"hooks": {"ema.fast": {"type": "ema"}}},
            "hooks.ema.fast: must be at most 100 letters, digits, `_` and `-`",
        ),
        ({"hooks": {"ema": {"priority": "x" * 100_000}}}, "or one of HIGHEST"),
        ({"changes": [{"at": 0, "set": {"x": 1}}] * 500}, "and 300 more problems"),
        ({"validate_every": "9" * 5000 + " steps"}, "must be a number of epochs"),
        ({"validate_every": 10**18}, "validate_every: must be a number of epochs or steps"),
        ({"seed": 2**80}, "seed: must be at most 4294967295"),
        ({"batch_size": 2**63}, "batch_size: must be less than 2147483648"),
        ({"task": "a." * 5000 + "b:C"}, "task: module "),
        ({"task_args": {"width": [[[]]]}}, "must be an integer"),
    ],
    ids=range(12),
)
def test_experiment_beyond_a_limit_is_refused(values: dict[str, Any], message: str) -> None:
    assert message in refusal(make_experiment, {**LINE, **values})


def test_deep_plain_data_is_refused() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert "is nested too deeply" in refusal(
        make_experiment, {**LINE, "task_args": {"width": deep}}
    )


def grid(**values: int) -> dict[str, Any]:
    return {
        "search": "grid",
        "space": {name: {"choice": list(range(1, count + 1))} for name, count in values.items()},
    }


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (
            grid(seed=1000, batch_size=1000, epochs=1000, accumulate=1000),
            "sweep.space: makes 1,000,000,000,000",
        ),
        (grid(seed=1_001), "sweep.space.seed.choice: must have at most 1000 entries"),
        (
            {"trials": 10**12, "space": {"seed": {"randint": [0, 9]}}},
            "sweep.trials: makes 1,000,000,000,000 trials",
        ),
        (
            {"repeats": 10**12, "space": {"batch_size": {"randint": [1, 9]}}},
            "sweep.space: makes 1,000,000,000,00",
        ),
        (
            {"space": {f"task_args.key{n}": {"choice": [1]} for n in range(1000)}},
            "sweep.space: must have at most",
        ),
        ({"space": {"a." * 300 + "a": {"choice": [1]}}}, "has 301 keys; at most 64 are allowed"),
        (
            {"points": [{"seed": 1}] * 5000, "space": {"seed": {"randint": [0, 9]}}},
            "sweep.points: must have at",
        ),
        (
            {"space": {f"task_args.key{n}": {"choice": list(range(1000))} for n in range(6)}},
            "sweep.space: has more than 5,000 values to check",
        ),
    ],
    ids=range(8),
)
def test_sweep_beyond_a_limit_is_refused_before_values_are_drawn(
    sweep: dict[str, Any], message: str
) -> None:
    assert message in refusal(make_experiment, {**LINE, "sweep": {"metric": "train/loss", **sweep}})


def test_budget_may_cut_a_large_grid() -> None:
    axes = grid(seed=20, batch_size=20, accumulate=20, epochs=20)
    sweep = {"metric": "train/loss", "budget": {"trials": 4}, **axes}
    settings = make_experiment({**LINE, "sweep": sweep}).sweep
    from orchestrator.sweeps.search.drawing import draw_points

    assert settings is not None
    assert [point["epochs"] for point in draw_points(settings)] == [1, 2, 3, 4]


EXITS = """\
import sys
from dataclasses import dataclass
from hooks import Hook
from tests.orchestrator.experiment.samples import Line

@dataclass
class Created(Line):
    def __post_init__(self):
        sys.exit(0)

@dataclass
class Asked(Line):
    def required_hooks(self):
        sys.exit("enough")

@dataclass
class Data(Line):
    def data(self):
        sys.exit(0)
    def meters(self):
        sys.exit(0)

@dataclass
class Misfit(Hook):
    def unsuitable(self, setup):
        sys.exit(0)
"""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"task": "leaves:T"},
            "task: module 'leaves' cannot be imported: SystemExit: 0 (it tries to end the process)",
        ),
        ({"task": "exits:Created"}, "task_args: SystemExit: 0 (it tries to end the"),
        ({"task": "exits:Asked"}, "task: Asked.required_hooks() failed: SystemExit: enough"),
        (
            {"hooks": {"odd": {"type": "exits:Misfit"}}},
            "hooks.odd: Misfit.unsuitable() failed: SystemExit: 0",
        ),
    ],
    ids=range(4),
)
def test_named_code_cannot_exit_the_checking_process(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "exits.py").write_text(EXITS)
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    assert message in refusal(make_experiment, {**LINE, **values}, [tmp_path])


def test_each_hook_that_cannot_be_checked_is_reported(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text(EXITS)
    hooks = {name: {"type": "exits:Misfit"} for name in ("odd", "even")}
    text = refusal(make_experiment, {**LINE, "hooks": hooks}, [tmp_path])
    assert "hooks.odd: Misfit.unsuitable() failed" in text
    assert "hooks.even: Misfit.unsuitable() failed" in text


def test_data_that_exits_is_not_read_by_the_check(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text(EXITS)
    hooks = {"checkpoint": {"best": "val/loss"}}
    assert (
        make_experiment({**LINE, "task": "exits:Data", "hooks": hooks}, [tmp_path]).name == "line"
    )

"""Comparisons of sweeps against hand calculations and SciPy."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.disk.new_run import create_run
from orchestrator.sweeps.results.comparison import compare_sweeps
from orchestrator.sweeps.results.result import Sweep
from orchestrator.tables.compared_values import ComparedValues
from tests.orchestrator.runs.written import change, new_run

DECAYS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def write_sweep(
    root: Path,
    name: str,
    accuracies: list[float],
    decays: list[float] | None = None,
    width: int = 8,
    repeats: int = 1,
    aggregate: str = "mean",
) -> Sweep:
    """Write a sweep over decays whose trials reported these accuracies once."""
    counts = {"trials": len(accuracies), "repeats": repeats, "aggregate": aggregate}
    sweep = {"objectives": [["val/accuracy", "max"]], **counts}
    folder = new_run(
        root, name, f"name: {name}\ntask_args: {{width: {width}}}\nhooks: {{}}\n", sweep=sweep
    )
    for number, (decay, accuracy) in enumerate(zip(decays or DECAYS, accuracies, strict=True)):
        configuration, seed = divmod(number, repeats)
        values = {"hooks.ema.decay": decay} | ({"seed": seed} if repeats > 1 else {})
        fields = {"values": values, "configuration": configuration if repeats > 1 else None}
        trial = new_run(f"{folder}/trials", f"trial-{number:04d}", "hooks: {}\n", **fields)
        trial.begin_attempt()
        trial.append_report(
            {"attempt": 0, "epoch": 0, "step": 1, "iteration": 1, "val/accuracy": accuracy}
        )
        trial.run_file.end("finished")
    folder.run_file.end("finished")
    return Sweep(folder)


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> list[Sweep]:
    """The second is 0.01 better with each decay, little beside the differences of trials; the third
    0.9 better."""
    root = tmp_path_factory.mktemp("sweeps")
    return [
        write_sweep(root, "first", DECAYS),
        write_sweep(root, "close", [value + 0.01 for value in DECAYS], width=16),
        write_sweep(root, "far", [value + 0.9 for value in DECAYS[::-1]], DECAYS[::-1]),
    ]


def test_best_trials_and_medians_are_compared(sweeps: list[Sweep]) -> None:
    compared = compare_sweeps(sweeps)
    assert (compared.sweeps, compared.trials) == (
        ["first", "close", "far"],
        [{"finished": 8}] * 3,
    )
    assert compared.config == {"task_args.width": [8, 16, 8]}
    assert compared.chosen == {
        "best trial": ["trial-0007", "trial-0007", "trial-0000"],
        "hooks.ema.decay": [0.8, 0.8, 0.8],
    }
    assert compared.metrics["val/accuracy best"].values == pytest.approx([0.8, 0.81, 1.7])
    assert compared.metrics["val/accuracy median"].values == pytest.approx([0.45, 0.46, 1.35])
    assert compared.metrics["val/accuracy median"].findings == [None, "noise", "more"]
    paired = compared.same_values["val/accuracy"]
    assert paired.values == [None, pytest.approx(0.01), pytest.approx(0.9)]
    assert (paired.pairs, paired.findings) == ([None, 8, 8], [None, "more", "more"])


@pytest.mark.parametrize("gain", [-0.1, 0.0, 0.1])
def test_trials_with_the_same_values_are_compared_by_a_paired_t_test(
    gain: float, tmp_path: Path
) -> None:
    random = np.random.default_rng(1)
    first = random.normal(0.5, 0.2, 8)
    other = random.normal(gain, 0.05, 8)
    both = [
        write_sweep(tmp_path, "first", [*first]),
        write_sweep(tmp_path, "other", [*(first + other)]),
    ]
    change(both[1].trial(0).folder, status="failed")
    compared = compare_sweeps(both).same_values["val/accuracy"]
    is_noise = ttest_rel(first[1:], (first + other)[1:]).pvalue >= 0.01
    assert compared.findings[1] == ("noise" if is_noise else "more" if other.mean() > 0 else "less")
    assert (compared.values[1], compared.pairs[1]) == (pytest.approx(other[1:].mean()), 7)


def test_costs_of_a_shared_training_count_once(tmp_path: Path) -> None:
    columns = {"status": "finished", "val/accuracy": 0.5, "leader": ["a", "a", "a", "d", "d", "d"]}
    tables = [
        pd.DataFrame({**columns, "step_s": [value] * 6}, index=[*"abcdef"]) for value in (0.1, 0.2)
    ]
    fields = {
        "name": "x",
        "folder": create_run(tmp_path, "x", "hooks: {}\n"),
        "config": {},
        "objectives": [("val/accuracy", "max")],
        "aggregate": "mean",
        "repeated_path": "seed",
    }
    sweeps: list[Any] = [
        SimpleNamespace(trials=table, objective=("val/accuracy", "max"), **fields)
        for table in tables
    ]
    compared = compare_sweeps(sweeps).costs["step_s"]
    assert compared == ComparedValues(values=[0.1, 0.2], findings=[None, "unknown"])


def test_repeats_are_compared_by_the_spread_between_seeds(tmp_path: Path) -> None:
    decays = [decay for decay in (0.1, 0.2) for _ in range(3)]
    first = write_sweep(tmp_path, "first", [0.3, 0.5, 0.4, 0.2, 0.6, 0.1], decays, repeats=3)
    reached = first.trials["val/accuracy"].to_numpy()
    close, far = (
        write_sweep(
            tmp_path,
            name,
            [*(reached + 0.1 + spread * np.array([-1, 0, 1] * 2))],
            decays,
            repeats=3,
        )
        for name, spread in (("close", 0.014), ("far", 0.14))
    )
    compared = compare_sweeps([first, close, far])
    paired = compared.same_values["val/accuracy"]
    assert paired.values == [None, pytest.approx(0.1), pytest.approx(0.1)]
    assert (paired.pairs, paired.findings) == ([None, 6, 6], [None, "more", "noise"])
    best = compared.metrics["val/accuracy best configuration"]
    assert best.values == pytest.approx([0.4, 0.5, 0.5])
    assert best.findings == [None, "noise", "noise"]
    # Welch's t of two means that are 0.9 apart with a standard error of 0.082 is 11, with 4 degrees
    # of freedom.
    beyond = write_sweep(
        tmp_path, "beyond", [*(reached[:3] + 0.9), 0.0, 0.0, 0.0], decays, repeats=3
    )
    best = compare_sweeps([first, beyond]).metrics["val/accuracy best configuration"]
    assert best.findings == [None, "more"]


@pytest.mark.parametrize(("value", "finding"), [(0.4, "less"), (0.5, "noise"), (0.6, "more")])
def test_repeats_without_any_spread_differ_only_if_their_values_do(
    value: float, finding: str, tmp_path: Path
) -> None:
    both = [
        write_sweep(tmp_path, name, [own] * 3, [0.1] * 3, repeats=3)
        for name, own in (("a", 0.5), ("b", value))
    ]
    best = compare_sweeps(both).metrics["val/accuracy best configuration"]
    assert best.findings == [None, finding]


def test_whole_numbers_are_the_same_values_in_a_column_with_empty_cells(tmp_path: Path) -> None:
    """In the second sweep pandas makes floats of the widths, as a damaged trial has none."""
    first, other = (
        write_sweep(tmp_path, name, [0.1] * 6, [8, 16, 24, 32, 40, 48])
        for name in ("first", "other")
    )
    (Path(other.path) / "trials/trial-0005/run.json").write_text("{")
    paired = compare_sweeps([first, other]).same_values["val/accuracy"]
    assert (paired.values, paired.pairs) == ([None, 0.0], [None, 5])


def test_metrics_come_in_the_order_of_the_first_sweep(sweeps: list[Sweep]) -> None:
    """The first metric is the one by which the first sweep's best trial was chosen."""
    both = [("val/accuracy", "max"), ("val/loss", "min")]
    first, other = (Sweep(sweep.folder) for sweep in sweeps[:2])
    first.objectives = both
    other.objectives = both[::-1]
    assert [*compare_sweeps([first, other]).metrics] == [
        "val/accuracy best",
        "val/accuracy median",
        "val/loss best",
        "val/loss median",
    ]


def test_few_trials_have_no_finding(tmp_path: Path) -> None:
    compared = compare_sweeps(
        [
            write_sweep(tmp_path, name, values, DECAYS[:4])
            for name, values in (("a", [0.1] * 4), ("b", [0.9] * 4))
        ]
    )
    assert compared.metrics["val/accuracy best"].findings == [None, "unknown"]
    assert compared.same_values["val/accuracy"].findings == [None, "unknown"]


def test_sweeps_on_the_command_line(sweeps: list[Sweep]) -> None:
    paths = [str(sweep.path) for sweep in sweeps]
    printed = CliRunner().invoke(app, ["compare", *paths]).stdout
    assert printed.startswith("first (8 finished), close (8 finished), far (8 finished)\n")
    assert "+0.01 (8 pairs)" in printed
    plain = json.loads(CliRunner().invoke(app, ["compare", *paths, "--json"]).stdout)
    assert plain["chosen"]["hooks.ema.decay"] == [0.8] * 3
    mixed = CliRunner().invoke(app, ["compare", paths[0], str(sweeps[0].runs[0].path)])
    assert mixed.exit_code == 2
    assert "is a sweep" in mixed.stderr
    assert "is a run" in mixed.stderr

"""Sweeps beside each other, against counting by hand."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.records.new_run import create_run
from orchestrator.sweeps.results.comparison import compare_signs, compare_sweeps
from orchestrator.sweeps.results.result import Sweep

DECAYS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def made(
    root: Path, name: str, reached: list[float], decays: list[float] | None = None, width: int = 8, repeats: int = 1
) -> Sweep:
    """A sweep over decays whose trials reached these accuracies."""
    sweep = {"metric": "val/accuracy", "mode": "max", "trials": len(reached), "repeats": repeats}
    folder = create_run(root, name, f"name: {name}\ntask_args: {{width: {width}}}\nhooks: {{}}\n", sweep=sweep)
    for number, (decay, value) in enumerate(zip(decays or DECAYS, reached, strict=True)):
        own = (
            {"values": {"seed": number % repeats}, "configuration": number // repeats}
            if repeats > 1
            else {"values": {}}
        )
        own["values"] = {"hooks.ema.decay": decay, **own["values"]}
        trial = create_run(f"{folder}/trials", f"trial-{number:04d}", "hooks: {}\n", **own)
        trial.begin_attempt()
        trial.append_metrics({"attempt": 0, "epoch": 0, "step": 1, "iteration": 1, "val/accuracy": value})
        trial.end("finished")
    folder.end("finished")
    return Sweep(folder)


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> list[Sweep]:
    """The second reaches 0.01 more with each decay, which among all trials is little; the third all that more, in other
    order."""
    root = tmp_path_factory.mktemp("sweeps")
    first = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    return [
        made(root, "one", first),
        made(root, "two", [value + 0.01 for value in first], width=16),
        made(root, "far", [value + 0.9 for value in first[::-1]], DECAYS[::-1]),
    ]


def test_what_was_chosen_and_reached(sweeps: list[Sweep]) -> None:
    found = compare_sweeps(sweeps)
    assert (found["sweeps"], found["trials"]) == (["one", "two", "far"], [{"finished": 8}] * 3)
    assert found["config"] == {"task_args.width": [8, 16, 8]}
    assert found["chosen"] == {
        "best trial": ["trial-0007", "trial-0007", "trial-0000"],
        "hooks.ema.decay": [0.8, 0.8, 0.8],
    }
    assert found["metrics"]["val/accuracy best"]["values"] == pytest.approx([0.8, 0.81, 1.7])
    assert found["metrics"]["val/accuracy median"]["values"] == pytest.approx([0.45, 0.46, 1.35])
    assert found["metrics"]["val/accuracy median"]["findings"] == [None, "noise", "more"]


def test_trials_that_tried_the_same_are_paired(sweeps: list[Sweep]) -> None:
    paired = compare_sweeps(sweeps)["same_values"]["val/accuracy"]
    assert paired["values"] == [None, pytest.approx(0.01), pytest.approx(0.9)]
    assert (paired["trials"], paired["findings"]) == ([None, 8, 8], [None, "more", "more"])


def test_with_repeats_the_spread_between_seeds_is_the_noise(tmp_path: Path) -> None:
    """By hand: differences of 0.1 ± 0.01 within each of two configurations, t = 0.1 / (0.01 * sqrt(2) / sqrt(6)) = 17.3
    with 4 degrees of freedom, which 1 in 10,000 exceeds; with 0.1 ± 0.1, t is 1.7."""
    decays = [decay for decay in (0.1, 0.2) for _ in range(3)]
    first = made(tmp_path, "one", [0.3, 0.5, 0.4, 0.2, 0.6, 0.1], decays, repeats=3)
    reached = first.trials["val/accuracy"].to_numpy()
    close, far = (
        made(tmp_path, name, [*(reached + 0.1 + spread * np.array([-1, 0, 1] * 2))], decays, repeats=3)
        for name, spread in (("close", 0.014), ("far", 0.14))
    )
    found = compare_sweeps([first, close, far])
    paired = found["same_values"]["val/accuracy"]
    assert paired["values"] == [None, pytest.approx(0.1), pytest.approx(0.1)]
    assert (paired["trials"], paired["findings"]) == ([None, 6, 6], [None, "more", "noise"])
    best = found["metrics"]["val/accuracy best configuration"]
    assert (best["values"], best["findings"]) == (
        [pytest.approx(0.4), pytest.approx(0.5), pytest.approx(0.5)],
        [None, "noise", "noise"],
    )
    # Welch's t of two means that lie 0.9 apart with a standard error of 0.082: 11, with 4 degrees of freedom.
    beyond = made(tmp_path, "beyond", [*(reached[:3] + 0.9), 0.0, 0.0, 0.0], decays, repeats=3)
    assert compare_sweeps([first, beyond])["metrics"]["val/accuracy best configuration"]["findings"] == [None, "more"]


def test_few_trials_tell_nothing(tmp_path: Path) -> None:
    found = compare_sweeps(
        [made(tmp_path, name, values, DECAYS[:4]) for name, values in (("a", [0.1] * 4), ("b", [0.9] * 4))]
    )
    assert found["metrics"]["val/accuracy best"]["findings"] == [None, "unknown"]
    assert found["same_values"]["val/accuracy"]["findings"] == [None, "unknown"]


@pytest.mark.parametrize(
    "differences",
    [[1.0] * 8, [1, 2, 3, 4, 5, 6, 7, -1], [1, -2, 3, -4, 5, -6, 7, -8], [-3.0, -2, -1, -4, -5, -6, -7, -8, -9]],
)
def test_signs_are_judged_as_all_of_them_would(differences: list[float]) -> None:
    """With so few differences all ways to give them signs can be counted."""
    sizes = np.abs(differences)
    means = [abs(float(np.dot(signs, sizes))) for signs in product([-1, 1], repeat=len(sizes))]
    rare = np.mean(np.array(means) >= abs(sum(differences)) - 1e-9) < 0.01
    assert compare_signs(np.array(differences, dtype=float)) == (
        ("more" if sum(differences) > 0 else "less") if rare else "noise"
    )


def test_sweeps_on_the_command_line(sweeps: list[Sweep], tmp_path: Path) -> None:
    paths = [sweep.path for sweep in sweeps]
    printed = CliRunner().invoke(app, ["compare", *paths]).stdout
    assert printed.startswith("one (8 finished), two (8 finished), far (8 finished)\n")
    assert "+0.01 in 8 trials, more" in printed
    assert (
        json.loads(CliRunner().invoke(app, ["compare", *paths, "--json"]).stdout)["chosen"]["hooks.ema.decay"]
        == [0.8] * 3
    )
    page = CliRunner().invoke(app, ["compare", *paths, "--html", str(tmp_path / "page.html")])
    assert page.stdout == f"{tmp_path / 'page.html'}\n"


def test_a_run_and_a_sweep_are_not_compared(sweeps: list[Sweep]) -> None:
    mixed = CliRunner().invoke(app, ["compare", sweeps[0].path, sweeps[0].runs[0].path])
    assert mixed.exit_code == 2
    assert "is a sweep" in mixed.stderr
    assert "is a run" in mixed.stderr

"""Random experiments, killed and resumed, equal their references."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accidents import cases, processes, runs, sweeps
from benchmarks.accidents.processes import DONE, INTERRUPTED
from tests.ranks import FORKSERVER

assert FORKSERVER is processes.PROCESSES  # which has imported what each process needs


@pytest.mark.parametrize("seed", range(10_000, 10_030))
def test_a_random_experiment_survives_its_accidents(tmp_path: Path, seed: int) -> None:
    outcome = runs.check(seed, tmp_path)
    assert not outcome.problem
    assert outcome.exit_codes[-1] == DONE


@pytest.mark.parametrize("seed", range(10_000, 10_010))
def test_a_random_sweep_survives_its_accidents(tmp_path: Path, seed: int) -> None:
    outcome = sweeps.check(seed, tmp_path)
    assert not outcome.problem
    assert outcome.exit_codes[-1] == DONE


def test_a_scheduler_stops_a_trial_at_the_report_at_which_it_was_interrupted(tmp_path: Path) -> None:
    place = "interrupt on_batch val 1 1 trial-0000"
    paces = {"epochs": 3, "validate_every": "1 epoch", "save_every": "1 epoch"}
    case = replace(cases.draw(10_000), **paces, optimizer="SGD", scheduler="ExponentialLR", unit="epoch", decay=0.5)
    space = {"optimizer.lr": {"uniform": [0.001, 0.05]}, "hooks.ema.decay": {"fan_out": [0, 0.5, 0.9]}}
    settings = {"metric": "val/loss", "mode": "min", "trials": 3, "scheduler": "asha", "space": space}
    outcome = sweeps.compare(sweeps.SweepCase(replace(case, places=[place]), settings), tmp_path / "sweep")
    assert outcome.exit_codes == [INTERRUPTED, DONE]
    assert not outcome.problem

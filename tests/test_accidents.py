"""Random experiments, killed and resumed, equal their references.

`python -m benchmarks.accidents` draws more of them.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.accidents import cases, processes, runs, sweeps
from benchmarks.accidents.outcome import Outcome
from benchmarks.accidents.processes import DONE, INTERRUPTED
from tests.ranks import FORKSERVER

Check = Callable[..., Outcome]


@pytest.fixture(scope="module")
def check() -> Iterator[Check]:
    """Call a check in a process that has imported Ray Tune, and forks itself for each attempt of a
    run or a sweep."""
    with ProcessPoolExecutor(1, FORKSERVER, _fork_attempts) as executor:
        yield lambda function, *arguments: executor.submit(function, *arguments).result()


def _fork_attempts() -> None:
    torch.set_num_threads(1)
    for name in ("orchestrator.sweeps.tune.schedulers", "tests.frozen"):
        import_module(name)
    fork: Any = multiprocessing.get_context("fork")
    processes.PROCESSES = fork


@pytest.mark.parametrize("seed", range(10_000, 10_020))
def test_random_experiment_survives_its_accidents(check: Check, tmp_path: Path, seed: int) -> None:
    outcome = check(runs.check, seed, tmp_path)
    assert not outcome.problem
    assert outcome.exit_codes[-1] == DONE


@pytest.mark.parametrize("seed", range(10_000, 10_006))
def test_random_sweep_survives_its_accidents(check: Check, tmp_path: Path, seed: int) -> None:
    outcome = check(sweeps.check, seed, tmp_path)
    assert not outcome.problem
    assert outcome.exit_codes[-1] == DONE


def test_scheduler_stops_a_trial_at_the_report_at_which_it_was_interrupted(
    check: Check, tmp_path: Path
) -> None:
    place = "interrupt on_batch val 1 1 trial-0000"
    paces = {"epochs": 3, "validate_every": "1 epoch", "save_every": "1 epoch"}
    case = replace(
        cases.draw(10_000),
        **paces,
        optimizer="SGD",
        scheduler="ExponentialLR",
        unit="epoch",
        decay=0.5,
    )
    space = {
        "optimizer.lr": {"uniform": [0.001, 0.05]},
        "hooks.ema.decay": {"fan_out": [0, 0.5, 0.9]},
    }
    settings = {
        "metric": "val/loss",
        "mode": "min",
        "trials": 3,
        "scheduler": "asha",
        "space": space,
    }
    outcome = check(
        sweeps.compare,
        sweeps.SweepCase(replace(case, places=[place]), settings),
        tmp_path / "sweep",
    )
    assert outcome.exit_codes == [INTERRUPTED, DONE]
    assert not outcome.problem

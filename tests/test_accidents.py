"""Random experiments, killed and resumed, equal their references."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accidents import runs, sweeps
from benchmarks.accidents.processes import DONE


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

"""Random experiments, killed and resumed, equal the same loops written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accidents.check import DONE, check


@pytest.mark.parametrize("seed", range(10_000, 10_030))
def test_a_random_experiment_survives_its_accidents(tmp_path: Path, seed: int) -> None:
    outcome = check(seed, tmp_path)
    assert not outcome.problem
    assert outcome.exit_codes[-1] == DONE

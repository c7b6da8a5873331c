"""Gradient synchronizations of steps with several iterations: only whole ones are compared."""

import numpy as np
import pandas as pd
import pytest

from orchestrator.doctor.gradient_syncs import extract_gradient_syncs
from tests.orchestrator.doctor.runs import OWN_S, training

STEP_S = sum(OWN_S.values())
"""Seconds of an iteration, to which noise adds up to 1%."""


def accumulating(iterations: int, microbatches: int) -> pd.DataFrame:
    stats = training(2, iterations)
    return stats.assign(step=stats["iteration"] // microbatches)


def test_step_that_is_still_running_is_left_out() -> None:
    """Iterations 401 and 402 belong to a step that ends after 404."""
    syncs = extract_gradient_syncs(accumulating(402, 4))
    assert syncs is not None
    assert syncs.iterations.tolist() == [*range(8, 404, 4)]
    assert syncs.local["forward_s"] == pytest.approx(4 * OWN_S["forward_s"], rel=0.01)


@pytest.mark.parametrize(("length", "complete"), [(52, 0), (200, 40)])
def test_sampled_stretches_have_only_whole_steps(length: int, complete: int) -> None:
    """Stretches begin every 512 iterations, with micro-batch 40 of 64: one of 52 iterations has no
    whole step, and one of 200 has two."""
    stats = accumulating(20 * 512, 64)
    syncs = extract_gradient_syncs(stats[(stats["iteration"] - 40) % 512 < length])
    assert (0 if syncs is None else len(syncs.iterations)) == complete
    if syncs is not None:
        assert syncs.step == pytest.approx(64 * STEP_S, rel=0.02)


@pytest.mark.parametrize("ranks", [[0, 1], [1]])
def test_step_with_a_gap_in_it_is_left_out(ranks: list[int]) -> None:
    stats = accumulating(80, 4)
    is_lost = np.isin(stats["iteration"], [21, 22]) & stats["rank"].isin(ranks)
    syncs = extract_gradient_syncs(stats[~is_lost])
    assert syncs is not None
    assert syncs.iterations.tolist() == [8, 12, 16, 20, *range(28, 84, 4)]
    assert syncs.step == pytest.approx(4 * STEP_S, rel=0.02)


def test_rows_may_have_any_order() -> None:
    stats = accumulating(80, 4)
    in_order = extract_gradient_syncs(stats)
    shuffled = extract_gradient_syncs(stats.sample(frac=1, random_state=0))
    assert in_order is not None
    assert shuffled is not None
    assert np.array_equal(in_order.step, shuffled.step)
    assert np.array_equal(in_order.iterations, shuffled.iterations)

import numpy as np
import pandas as pd
import pytest

from orchestrator.stats.insight.rank_status import N_ITERATIONS, Speed, compare_ranks, compute_speed
from orchestrator.stats.insight.stragglers import MIN_SYNCS
from tests.orchestrator.stats.insight.runs import OWN_S, slower, training


def test_the_slow_rank_is_told_by_its_own_work_though_all_iterations_take_as_long() -> None:
    rows = training(4, change=slower("forward_s", 2, 0.02))
    found = compare_ranks(rows)
    assert [rank for rank, standing in found.items() if standing.slowest] == [2]
    assert found[2].span == "forward_s"
    assert found[2].behind_s == pytest.approx(0.02, abs=0.001)
    # Each rank adds up to 1% of noise to its spans.
    assert found[2].work_s == pytest.approx(sum(OWN_S.values()) + 0.02, rel=0.02)
    assert found[0].work_s == pytest.approx(sum(OWN_S.values()), rel=0.02)
    assert found[0].wait_s == pytest.approx(0.02, abs=0.002)
    assert found[2].wait_s == pytest.approx(0.0, abs=0.001)


def test_ranks_that_are_alike_have_no_slowest() -> None:
    assert not any(standing.slowest for standing in compare_ranks(training(4)).values())


def test_nothing_is_said_of_one_rank_or_of_few_iterations() -> None:
    assert compare_ranks(training(1)) == {}
    assert compare_ranks(training(2, iterations=MIN_SYNCS)) == {}, "the first is left out"
    assert set(compare_ranks(training(2, iterations=MIN_SYNCS + 1))) == {0, 1}
    assert compare_ranks(pd.DataFrame()) == {}


def test_speed_is_of_the_last_iterations() -> None:
    """Iteration n takes n seconds, and half as much again on rank 1; every batch has 32 samples."""
    iterations = np.arange(1, 101)
    rows = pd.concat(
        pd.DataFrame(
            {
                "rank": rank,
                "iteration": iterations,
                "step_s": iterations * (1 + rank / 2),
                "batch_size": 32,
                "loss": 1.0 / iterations + rank,
            }
        )
        for rank in (0, 1)
    )
    last = iterations[-N_ITERATIONS:]
    assert compute_speed(rows) == Speed(
        loss=pytest.approx(np.mean(1.0 / last) + 0.5),
        step_s=pytest.approx(np.median(np.concatenate([last, 1.5 * last]))),
        samples_per_s=pytest.approx(2 * 32 * N_ITERATIONS / (1.5 * last.sum())),
    )


def test_speed_of_missing_columns_is_unknown() -> None:
    assert compute_speed(pd.DataFrame()) == Speed()
    assert compute_speed(pd.DataFrame({"rank": [0], "iteration": [1], "loss": [float("nan")]})) == Speed()

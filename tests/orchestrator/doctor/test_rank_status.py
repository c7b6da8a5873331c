import pandas as pd
import pytest

from orchestrator.doctor.rank_status import compare_ranks
from orchestrator.doctor.stragglers import MIN_SYNCS
from tests.orchestrator.doctor.runs import OWN_S, slower, training


def test_slow_rank_is_found_by_its_own_work_in_equal_iterations() -> None:
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


def test_one_rank_or_few_iterations_give_no_finding() -> None:
    assert compare_ranks(training(1)) == {}
    assert compare_ranks(training(2, iterations=MIN_SYNCS)) == {}, "the first is left out"
    assert set(compare_ranks(training(2, iterations=MIN_SYNCS + 1))) == {0, 1}
    assert compare_ranks(pd.DataFrame()) == {}


def test_step_now_running_is_not_compared() -> None:
    """Of four iterations each, after the first, which is left out."""
    rows = training(2, iterations=4 * (MIN_SYNCS + 1))
    rows["step"] = rows["iteration"] // 4
    assert set(compare_ranks(rows)) == {0, 1}
    assert compare_ranks(rows[rows["iteration"] < rows["iteration"].max()]) == {}

"""The Pareto front, against brute force."""

import math

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.sweeps.results.pareto import find_pareto_front

NUMBERS = st.one_of(st.integers(0, 4).map(float), st.just(math.nan), st.just(math.inf))
STATUSES = st.sampled_from(["finished", "stopped", "running", "failed"])
MODES = st.sampled_from(["max", "min"])


def beats(row: list[float], other: list[float], modes: list[str]) -> bool:
    as_good = all(
        a >= b if mode == "max" else a <= b for a, b, mode in zip(row, other, modes, strict=True)
    )
    return as_good and row != other


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 3).flatmap(
        lambda k: st.tuples(
            st.lists(st.tuples(st.lists(NUMBERS, min_size=k, max_size=k), STATUSES), max_size=12),
            st.lists(MODES, min_size=k, max_size=k),
        )
    )
)
def test_pareto_front_is_not_dominated(
    case: tuple[list[tuple[list[float], str]], list[str]],
) -> None:
    """Failed trials are not on it."""
    trials, modes = case
    names = [f"m{index}" for index in range(len(modes))]
    table = pd.DataFrame([[*row, status] for row, status in trials], columns=[*names, "status"])
    front = find_pareto_front(table, dict(zip(names, modes, strict=True)))
    rated = {
        index: row
        for index, (row, status) in enumerate(trials)
        if status != "failed" and not any(map(math.isnan, row))
    }
    expected = [
        i
        for i, row in rated.items()
        if not any(beats(other, row, modes) for other in rated.values())
    ]
    assert sorted(front.index) == expected
    firsts = front["m0"].tolist()
    assert firsts == sorted(firsts, reverse=modes[0] == "max")

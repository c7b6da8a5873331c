"""Which ranks hang, which wait for them, and which do not report."""

import pytest

from orchestrator.disk.hang import RankStack, find_hung_ranks


def stack(
    rank: int, idle_s: float, *, waits: bool = False, limit_s: float = 300, at: float = 1000.0
) -> RankStack:
    return RankStack(rank, "n1", at, idle_s, limit_s, waits, f"place {rank}", f"stack {rank}\n")


@pytest.mark.parametrize(
    ("said", "hung", "silent", "waiting"),
    [
        pytest.param(
            [stack(0, 305, waits=True), stack(1, 301)], [1], [], [0], id="one stands, one waits"
        ),
        pytest.param([stack(0, 305), stack(1, 301)], [0, 1], [], [], id="both stand"),
        pytest.param(
            [stack(0, 400, waits=True), stack(1, 390, waits=True)],
            [],
            [],
            [0, 1],
            id="calls that do not match",
        ),
        pytest.param([stack(0, 400, waits=True)], [], [1], [0], id="the other says nothing"),
        pytest.param(
            [stack(0, 400, waits=True), stack(1, 290, at=900)],
            [],
            [1],
            [0],
            id="the other has stopped saying anything",
        ),
    ],
)
def test_hung_ranks_are_distinguished_from_waiting_ones(
    said: list[RankStack], hung: list[int], silent: list[int], waiting: list[int]
) -> None:
    found = find_hung_ranks(said, 2)
    assert found is not None
    assert [one.rank for one in found.hung] == hung
    assert list(found.silent) == silent
    assert [one.rank for one in found.waiting] == waiting
    assert found.ranks == tuple(hung + silent or waiting)
    assert all(f"place {rank}" in str(found) for rank in hung or waiting)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([], id="nobody says anything"),
        pytest.param([stack(0, 290, waits=True), stack(1, 290)], id="not for long enough"),
        pytest.param([stack(0, 305, waits=True)], id="the other may be about to say so"),
        pytest.param(
            [stack(0, 900, waits=True), stack(1, 0)], id="the other makes progress, slowly"
        ),
        pytest.param(
            [stack(0, 900, waits=True), stack(1, 1000, limit_s=1500)],
            id="the other saves a checkpoint",
        ),
    ],
)
def test_slow_ranks_do_not_hang(said: list[RankStack]) -> None:
    assert find_hung_ranks(said, 2) is None


def test_hung_rank_whose_report_is_old_is_not_silent() -> None:
    """Faulthandler writes once, when the rank is over its limit."""
    waiting = [stack(rank, 400, waits=True) for rank in (0, 1)]
    found = find_hung_ranks([*waiting, stack(2, 300, at=700)], 3)
    assert found is not None
    assert found.ranks == (2,)
    assert "no sign of" not in str(found)

"""Every rank learns whether the others could do their part."""

from typing import Any

import pytest

from orchestrator.loop.rank_work import OtherRankFailed, do_on_all_ranks, do_on_master
from orchestrator.loop.world import World
from tests.ranks import on_ranks


def outcome(world: World, failing: int | None, error: type[BaseException], *, master: bool) -> Any:
    """What a rank gets if all of them return their number, and one fails."""

    def work() -> int:
        if world.rank == failing:
            raise error("out of space")
        return world.rank

    try:
        return (do_on_master if master else do_on_all_ranks)(world, work)
    except BaseException as raised:
        return f"{type(raised).__name__}: {raised}"


def outcomes(rank: int, size: int, failing: int | None, master: bool) -> list[Any]:
    world = World(rank, size)
    errors = (OSError, SystemExit)
    return [outcome(world, failing, error, master=master) for error in errors]


@pytest.mark.parametrize("master", [False, True])
@pytest.mark.parametrize("failing", [None, 0])
def test_ranks_agree_on_the_outcome(failing: int | None, master: bool) -> None:
    first, second = on_ranks(outcomes, 2, failing, master)
    if failing is None:
        assert first == second == [0 if master else [0, 1]] * 2
        return
    assert first == ["OSError: out of space", "SystemExit: out of space"]
    name = OtherRankFailed.__name__
    assert second[0] == f"{name}: rank 0: out of space"
    assert second[1].startswith(f"{name}: rank 0: ")
    assert "out of space" in second[1]

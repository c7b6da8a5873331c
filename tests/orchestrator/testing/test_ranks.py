"""Calls on two ranks: what they return, and what they raise."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from orchestrator.loop.world import World
from orchestrator.testing.ranks import RanksFailed, on_two_ranks


def make_array(world: World) -> np.ndarray:
    return np.array([world.rank, 2])


def answer_late_on_rank_0(world: World) -> int:
    time.sleep(0.3 * (world.rank == 0))
    return world.rank


def make_lock(world: World) -> Any:
    return threading.Lock()


def test_arrays_are_returned() -> None:
    first, second = on_two_ranks(make_array)
    assert first.tolist() == [0, 2]
    assert second.tolist() == [1, 2]


def test_values_are_in_rank_order_when_rank_1_returns_first() -> None:
    assert on_two_ranks(answer_late_on_rank_0) == [0, 1]


def test_value_that_cannot_be_sent_is_an_error_and_the_next_call_works() -> None:
    with pytest.raises(RanksFailed, match=r"^rank [01]: the result cannot be sent: .*lock"):
        on_two_ranks(make_lock)
    assert len(on_two_ranks(make_array)) == 2

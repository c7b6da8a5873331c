"""Sizes of the batches of all ranks, and rows gathered by them."""

import re
from typing import Any

import pytest
import torch

from hooks import State
from hooks.self_supervised.shared.batch_sizes import gather_batch_sizes, gather_rows
from tests.ranks import on_ranks

WRONG = "batch_size() must return the number of samples, not of views: got 6 where the batch has the length 3"


def gathered(rank: int, world_size: int) -> list[Any]:
    state = State(rank=rank, world_size=world_size, phase_length=3)
    answers = []
    for state.phase_iteration, state.batch_size in ((1, 4), (2, 4 - 3 * rank)):
        sizes = gather_batch_sizes(state)
        rows = torch.arange(2 * state.batch_size, dtype=torch.float32).view(-1, 2) + 100 * rank
        whole = torch.arange(state.batch_size) + 100 * rank
        answers += [
            sizes,
            gather_rows(rows.requires_grad_(), sizes).tolist(),
            gather_rows(whole, sizes).tolist(),
        ]
    with pytest.raises(ValueError) as refused:
        gather_rows(torch.zeros(3, 2), [6, 6])
    return [*answers, str(refused.value)]


def rows(count: int, rank: int) -> list[list[float]]:
    return [[2.0 * row + 100 * rank, 2.0 * row + 1 + 100 * rank] for row in range(count)]


def test_ranks_get_the_rows_of_all_in_order_also_where_numbers_differ() -> None:
    expected = [
        [4, 4],
        rows(4, 0) + rows(4, 1),
        [0, 1, 2, 3, 100, 101, 102, 103],
        [4, 1],
        rows(4, 0) + rows(1, 1),
        [0, 1, 2, 3, 100],
        WRONG,
    ]
    assert on_ranks(gathered) == [expected, expected]


def test_a_batch_size_that_counts_views_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape(WRONG)):
        gather_rows(torch.zeros(3, 2), [6])

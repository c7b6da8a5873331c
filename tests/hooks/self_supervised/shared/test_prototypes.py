import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hooks import State
from hooks.distributed.collectives import gather
from hooks.self_supervised.shared.batch_sizes import gather_batch_sizes
from hooks.self_supervised.shared.prototypes import assign_codes, find_layer
from tests.ranks import on_ranks


@pytest.mark.parametrize(
    ("name", "what"),
    [("missing", "is missing"), ("biased", "is a Linear with bias"), ("other", "is a ReLU")],
)
def test_prototypes_must_be_a_linear_layer_without_bias(name: str, what: str) -> None:
    module = nn.ModuleDict({"biased": nn.Linear(2, 2), "other": nn.ReLU()})
    with pytest.raises(ValueError, match=f"'{name}' of ModuleDict {what}"):
        find_layer(module, name)


# Codes


def similarities(samples: int, prototypes: int, seed: int = 0) -> Tensor:
    return 2 * torch.rand(samples, prototypes, generator=torch.Generator().manual_seed(seed)) - 1


def paper(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """The listing of the SwAV paper's appendix, in double precision: Q is (K, B) and has total
    1."""
    q = torch.exp(scores.double() / epsilon).t()
    q /= q.sum()
    rows = torch.full((q.shape[0],), 1 / q.shape[0])
    columns = torch.full((q.shape[1],), 1 / q.shape[1])
    for _ in range(iterations):
        q *= (rows / q.sum(dim=1)).unsqueeze(1)
        q *= (columns / q.sum(dim=0)).unsqueeze(0)
    return (q / q.sum(dim=0, keepdim=True)).t()


@pytest.mark.parametrize(("epsilon", "iterations"), [(0.05, 1), (0.05, 3), (0.5, 3), (0.05, 50)])
def test_codes_are_those_of_the_paper(epsilon: float, iterations: int) -> None:
    scores = similarities(24, 6)
    torch.testing.assert_close(
        assign_codes(scores, epsilon, iterations, across_ranks=False).double(),
        paper(scores, epsilon, iterations),
        rtol=1e-4,
        atol=1e-7,
    )


def of_a_share(rank: int, world_size: int) -> list[list[float]]:
    scores = similarities(10, 4)
    return assign_codes(
        scores[:7] if rank == 0 else scores[7:], 0.05, 3, across_ranks=True
    ).tolist()


def test_two_ranks_compute_the_codes_of_one_rank_with_all_samples() -> None:
    """Ranks with 7 and 3 samples: the paper's code counts each rank's samples times the number of
    ranks."""
    first, second = on_ranks(of_a_share)
    torch.testing.assert_close(
        torch.tensor(first + second).double(),
        paper(similarities(10, 4), 0.05, 3),
        rtol=1e-4,
        atol=1e-7,
    )


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
            gather(rows.requires_grad_(), sizes).tolist(),
            gather(whole, sizes).tolist(),
        ]
    with pytest.raises(ValueError) as refused:
        gather(torch.zeros(3, 2), [6, 6])
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
        gather(torch.zeros(3, 2), [6])

"""Codes of prototypes, against the paper's listing."""

import pytest
import torch
from torch import Tensor

from hooks.self_supervised.shared.sinkhorn import assign_codes
from tests.ranks import on_ranks


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

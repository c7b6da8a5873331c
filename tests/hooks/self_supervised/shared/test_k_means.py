"""Spherical k-means, against Lloyd's algorithm in double precision."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hooks.self_supervised.shared.k_means import assign, cluster
from tests.ranks import on_ranks


def directions(count: int, seed: int = 0, size: int = 4) -> Tensor:
    return functional.normalize(
        torch.randn(count, size, generator=torch.Generator().manual_seed(seed)), dim=1
    )


def lloyd(samples: Any, centroids: Any, iterations: int) -> tuple[Any, Any]:
    """Sample by sample in double precision; no cluster may be empty."""
    for _ in range(iterations):
        nearest = [
            max(range(len(centroids)), key=lambda k: float(sample @ centroids[k]))
            for sample in samples
        ]
        sums = np.zeros_like(centroids)
        for sample, place in zip(samples, nearest, strict=True):
            sums[place] += sample
        centroids = np.stack([total / np.linalg.norm(total) for total in sums])
    return centroids, [int((centroids @ sample).argmax()) for sample in samples]


@pytest.mark.parametrize("iterations", [1, 10])
def test_centroids_and_assignments_are_those_of_lloyds_algorithm(iterations: int) -> None:
    samples = directions(60)
    centroids, nearest = cluster(samples, samples[:5], iterations, world_size=1)
    expected, places = lloyd(samples.double().numpy(), samples[:5].double().numpy(), iterations)
    torch.testing.assert_close(centroids.double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)
    assert nearest.tolist() == places


def test_the_centroid_of_an_empty_cluster_stays() -> None:
    samples = functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1]]), dim=1)
    start = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    centroids, nearest = cluster(samples, start, 3, world_size=1)
    torch.testing.assert_close(centroids, start)
    assert nearest.tolist() == [0, 0, 0]


def test_more_samples_than_fit_at_once() -> None:
    samples = directions(20_000)
    centroids = directions(5, seed=1)
    assert torch.equal(assign(samples, centroids), (samples @ centroids.t()).argmax(dim=1))


def of_a_share(rank: int, world_size: int, sizes: list[int], identical: bool) -> Any:
    samples = directions(sum(sizes))
    start = samples[:1].expand(6, 4) if identical else samples[:6]
    mine = samples.split(sizes)[rank]
    centroids, nearest = cluster(mine, start, 5, world_size=2)
    return centroids.tolist(), nearest.tolist()


SHARES = list(product(([37, 23], [57, 3], [60, 0]), (False, True)))
"""Samples of each rank, and whether all centroids are the same at first, so that five clusters are
empty."""


def clusters_of_shares(rank: int, world_size: int) -> Any:
    return [of_a_share(rank, world_size, sizes, identical) for sizes, identical in SHARES]


def test_ranks_with_uneven_shares_find_the_clusters_of_one_rank() -> None:
    for (_, identical), first, second in zip(SHARES, *on_ranks(clusters_of_shares), strict=True):
        centroids, nearest = first
        others, other_nearest = second
        whole, places = of_a_share(0, 1, [60], identical)
        assert centroids == others
        torch.testing.assert_close(
            torch.tensor(centroids), torch.tensor(whole), rtol=1e-4, atol=1e-5
        )
        assert nearest + other_nearest == places

"""Spherical k-means."""

import torch
from torch import Tensor
from torch.nn import functional

from hooks.distributed import collectives

_CHUNK = 16384
"""Samples to compare with all centroids at once, which limits memory."""


@torch.no_grad()
def cluster(
    samples: Tensor, centroids: Tensor, iterations: int, world_size: int
) -> tuple[Tensor, Tensor]:
    """Return unit-length centroids (K, D) after k-means, and the nearest centroid of each local
    sample, (N,) int64.

    `samples` (N, D) are this rank's, of unit length and any number. The centroid of an empty
    cluster stays, as in VISSL. Sums are added across ranks, so all ranks get the same bits.
    Collective. Source: "Concept Decompositions for Large Sparse Text Data Using Clustering"
    (Dhillon and Modha, 2001).
    """
    for _ in range(iterations):
        nearest = assign(samples, centroids)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, samples)
        counts = torch.bincount(nearest, minlength=len(centroids))
        collectives.sum_across_ranks([sums, counts], world_size)
        centroids = torch.where(
            counts.unsqueeze(1) > 0, functional.normalize(sums, dim=1), centroids
        )
    return centroids, assign(samples, centroids)


@torch.no_grad()
def assign(samples: Tensor, centroids: Tensor) -> Tensor:
    """Return the nearest centroid of each sample, (N,) int64."""
    return torch.cat(
        [(chunk @ centroids.t()).argmax(dim=1) for chunk in torch.split(samples, _CHUNK)]
    )

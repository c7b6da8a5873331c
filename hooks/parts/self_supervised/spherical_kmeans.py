"""Spherical k-means over samples that are spread over ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from hooks.parts import coalesced_collectives as coalesced

_CHUNK = 16384
"""Samples compared with all centroids at once: bounds the table of similarities."""


@torch.no_grad()
def cluster(samples: Tensor, centroids: Tensor, iterations: int, *, across_ranks: bool) -> tuple[Tensor, Tensor]:
    """Moves unit-length centroids (K, D) to the means of the samples nearest to them, brought back to unit length.

    `samples` (N, D) are this rank's, of unit length; N may differ from rank to rank and be 0. A centroid without
    samples takes the place of the sample farthest from its own, each such centroid another. Returns the centroids, the
    same bits on all ranks, and the index of each own sample's nearest one, (N,) int64. With `across_ranks` two
    collectives in each iteration, a third where a centroid is empty. Source: "Concept Decompositions for Large Sparse
    Text Data Using Clustering" (Dhillon and Modha, 2001); empty clusters as in scikit-learn's KMeans.
    """
    for _ in range(iterations):
        nearest, similarity = assign(samples, centroids)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, samples)
        counts = torch.bincount(nearest, minlength=len(centroids))
        if across_ranks:
            coalesced.total([sums, counts])
        empty = (counts == 0).nonzero().squeeze(1)
        if len(empty):
            sums[empty] = _farthest(samples, similarity, len(empty), across_ranks)
        centroids = functional.normalize(sums, dim=1)
    return centroids, assign(samples, centroids)[0]


@torch.no_grad()
def assign(samples: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each sample and the similarity to it: (N,) int64 and (N,)."""
    best = [(chunk @ centroids.t()).max(dim=1) for chunk in torch.split(samples, _CHUNK)]
    return torch.cat([chunk.indices for chunk in best]), torch.cat([chunk.values for chunk in best])


def _farthest(samples: Tensor, similarity: Tensor, count: int, across_ranks: bool) -> Tensor:
    """The samples of all ranks that are least similar to their centroids, (count, D)."""
    order = similarity.argsort(stable=True)[:count]
    if not across_ranks:
        return samples[order]
    # Similarity and sample side by side; a rank with fewer samples fills up with ones that are never chosen.
    mine = samples.new_full((count, samples.shape[1] + 1), torch.inf)
    mine[: len(order), 0], mine[: len(order), 1:] = similarity[order], samples[order]
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    joined = torch.cat(everybody)
    return joined[joined[:, 0].argsort(stable=True)[:count], 1:]

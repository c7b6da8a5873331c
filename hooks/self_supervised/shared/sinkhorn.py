"""Soft assignments of samples to prototypes, by Sinkhorn-Knopp."""

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def assign_codes(scores: Tensor, epsilon: float, iterations: int, *, across_ranks: bool) -> Tensor:
    """Return soft assignments of samples to prototypes, (..., B, K) float32, by Sinkhorn-Knopp.

    Rows sum to 1, and columns nearly to B / K. `scores` (..., B, K) are similarities; a smaller
    `epsilon` gives harder assignments. Works in logarithms, so nothing overflows. With
    `across_ranks` the columns cover all ranks' samples, of any number: one collective per
    iteration. Source: "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments"
    (Caron et al., 2020), equation 3; "Self-labelling via simultaneous clustering and representation
    learning" (Asano et al., 2020).
    """
    logits = scores.float() / epsilon
    for _ in range(iterations):
        logits = (logits - _sum_columns(logits, across_ranks)).log_softmax(dim=-1)
    return logits.exp()


def _sum_columns(logits: Tensor, across_ranks: bool) -> Tensor:
    """Return the logarithm of each column's sum over the samples, (..., 1, K)."""
    sums = logits.logsumexp(dim=-2, keepdim=True)
    if not across_ranks:
        return sums
    # Gather, then sum in the same order: all ranks get the same bits.
    sums_of_ranks = [torch.empty_like(sums) for _ in range(dist.get_world_size())]
    dist.all_gather(sums_of_ranks, sums)
    return torch.stack(sums_of_ranks).logsumexp(dim=0)

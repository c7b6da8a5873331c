"""Sinkhorn-Knopp: assigns samples to prototypes so that each prototype gets an equal share of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def codes(scores: Tensor, epsilon: float, iterations: int, *, across_ranks: bool) -> Tensor:
    """Soft assignments of samples to prototypes, shape (..., B, K), float32: rows sum to 1, columns nearly to B / K.

    `scores` (..., B, K) are the similarities; a smaller `epsilon` gives harder assignments. Each iteration scales the
    columns, then the rows, of exp(scores / epsilon), in the logarithm, so that nothing overflows or vanishes however
    small epsilon is. With `across_ranks` the columns are those of all ranks' samples together: one collective per
    iteration, of K values for each table, and ranks may have different numbers of samples.
    Source: "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (Caron et al., 2020), equation
    3; "Self-labelling via simultaneous clustering and representation learning" (Asano et al., 2020).
    """
    logits = scores.float() / epsilon
    for _ in range(iterations):
        logits = (logits - _column_sums(logits, across_ranks)).log_softmax(dim=-1)
    return logits.exp()


def _column_sums(logits: Tensor, across_ranks: bool) -> Tensor:
    """The logarithm of each column's sum over the samples, shape (..., 1, K)."""
    mine = logits.logsumexp(dim=-2, keepdim=True)
    if not across_ranks:
        return mine
    # Gathered and summed alike everywhere, so that all ranks have the same bits.
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    return torch.stack(everybody).logsumexp(dim=0)

"""Gathering rows of all ranks."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from hooks.state import State


def batch_sizes(state: State) -> list[int]:
    """Return each rank's number of samples in this training batch.

    All batches but an epoch's last are full, so ranks exchange their sizes only there, and always for a stream.
    """
    if state.world_size == 1 or (state.full_batches and state.phase_iteration + 1 < state.phase_length):
        return [state.batch_size] * state.world_size
    sizes = torch.zeros(state.world_size, dtype=torch.int64, device=state.device)
    sizes[state.rank] = state.batch_size
    dist.all_reduce(sizes)
    all_sizes: list[int] = sizes.tolist()
    return all_sizes


@torch.no_grad()
def gather(rows: Tensor, sizes: list[int]) -> Tensor:
    """Join the rows of all ranks in rank order, without gradients: (sizes[rank], ...) becomes (sum(sizes), ...).

    Collective; `sizes` must be equal on all ranks. Raises ValueError if this rank has a different number of rows.
    """
    own = sizes[dist.get_rank() if len(sizes) > 1 else 0]
    if len(rows) != own:
        raise ValueError(
            f"batch_size() must return the number of samples, not of views: got {own} for {len(rows)} rows"
        )
    if len(sizes) == 1:
        return rows.detach()
    padded = functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, max(sizes) - len(rows))).contiguous()
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

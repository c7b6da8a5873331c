"""Sizes of the batches of all ranks, and their rows."""

import torch
import torch.distributed as dist
from torch import Tensor

from hooks.state import State


def gather_batch_sizes(state: State) -> list[int]:
    """Return each rank's number of samples in this training batch.

    All batches but an epoch's last are full, so ranks exchange their sizes only there, and always
    for an iterable dataset. Collective then.
    """
    is_last = state.phase_iteration + 1 >= state.phase_length
    if state.world_size == 1 or (state.full_batches and not is_last):
        return [state.batch_size] * state.world_size
    sizes = torch.zeros(state.world_size, dtype=torch.int64, device=state.device)
    sizes[state.rank] = state.batch_size
    dist.all_reduce(sizes)
    all_sizes: list[int] = sizes.tolist()
    return all_sizes


@torch.no_grad()
def gather_rows(rows: Tensor, sizes: list[int]) -> Tensor:
    """Join the rows of all ranks in rank order, without gradients: (sizes[rank], ...) becomes
    (sum(sizes), ...).

    Collective; `sizes` must be equal on all ranks. Raises ValueError if this rank has a different
    number of rows.
    """
    rank = dist.get_rank() if len(sizes) > 1 else 0
    own = sizes[rank]
    if len(rows) != own:
        raise ValueError(
            "batch_size() must return the number of samples, not of views:"
            f" got {own} where the batch has the length {len(rows)}"
        )
    if len(sizes) == 1:
        return rows.detach()
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[:own] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

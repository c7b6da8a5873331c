"""The rows of all ranks, on every rank."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from hooks.state import State


def batch_sizes(state: State) -> list[int]:
    """The samples each rank has in this training batch, in rank order; collective in the last iteration of a phase.

    All batches but an epoch's last are full, so only there are ranks asked, and only there does the host wait; of a
    stream always.
    """
    if state.world_size == 1 or (state.full_batches and state.phase_iteration + 1 < state.phase_length):
        return [state.batch_size] * state.world_size
    sizes = torch.zeros(state.world_size, dtype=torch.int64, device=state.device)
    sizes[state.rank] = state.batch_size
    dist.all_reduce(sizes)
    every: list[int] = sizes.tolist()
    return every


@torch.no_grad()
def gather(rows: Tensor, sizes: list[int]) -> Tensor:
    """Joins the rows of all ranks in rank order: (sizes[rank], ...) becomes (sum(sizes), ...), without gradients.

    Collective; `sizes` may differ from rank to rank, and every rank must give the same ones. Raises ValueError where
    this rank has another number of rows than its size says.
    """
    own = sizes[dist.get_rank() if len(sizes) > 1 else 0]
    if len(rows) != own:
        raise ValueError(
            f"this rank has {len(rows)} rows for a batch of {own} samples: the task's batch_size must count samples,"
            " not views or crops"
        )
    if len(sizes) == 1:
        return rows.detach()
    padded = functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, max(sizes) - len(rows))).contiguous()
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
